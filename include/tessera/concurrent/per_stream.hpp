// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <new>
#include <utility>

#include <tessera/caching_allocator.hpp>
#include <tessera/concurrent/arena.hpp>
#include <tessera/concurrent/reentrancy_guard.hpp>
#include <tessera/core/allocator_event.hpp>
#include <tessera/core/error.hpp>
#include <tessera/core/fatal.hpp>
#include <tessera/core/statistics.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/detail/allocate_calls.hpp>
#include <tessera/detail/caller_mistake.hpp>
#include <tessera/detail/pagemap.hpp>
#include <tessera/detail/sums.hpp>
#include <tessera/fwd.hpp>
#include <tessera/interop/in_place.hpp>
#include <tessera/provider/shared_provider.hpp>

namespace tessera {

/// A caching_allocator for many threads that mostly use streams of their own: each stream has a lane, an allocator with a
/// mutex of its own, over one provider. The calls are those of caching_allocator, but for handles.
///
/// There are at most 256 lanes, made when they are needed and kept; streams that find no place of their own share one. A
/// thread that frees what a lane gave to another thread hands it over to that lane, where it is free once somebody next
/// allocates or looks there: who looks (at now(), statistics() and so on) may so release segments. The limit of growth
/// holds for all lanes together. Where the recipe recovers by emptying the cache, all lanes empty theirs, and then the device
/// is asked once more, as without lanes. The sink learns of one event at a time, in the order of each lane.
///
/// One thread gets what a caching_allocator would give it, with these exceptions. A lane polls events only when it allocates
/// or is looked at itself. A policy sees its own lane's usage, with the limit of all lanes. No block, and no idle page, serves
/// a stream of another lane: with a recipe whose blocks cross, as cuda_async, more requests fail where memory is short. With
/// several threads, others may take what was given back; a request then empties their caches again, at most eight times.
///
/// Where the recipe maps pages into ranges, each lane has ranges of its own. What `locked` says of its mutex then holds for
/// that of each lane.
template <typename Recipe, device_provider Provider, event_observer Observer, typename Counting>
class per_stream : public allocate_calls<per_stream<Recipe, Provider, Observer, Counting>> {
  using calls = allocate_calls<per_stream>;
  using lane_type = lane<Recipe, shared_provider<Provider>, Observer, Counting>;
  using allocator = typename lane_type::allocator;

 public:
  static constexpr std::size_t most_lanes = 256;

  per_stream() : per_stream(Provider{}) {}
  explicit per_stream(Provider device, policies<Recipe> chosen = {}, Observer observer = {})
      : device_(std::move(device)),
        settings_(std::move(chosen)),
        streams_(settings_.streams),
        observer_(std::move(observer)),
        budget_(settings_.growth.limit(device_.capacity())) {}
  per_stream(const per_stream&) = delete;
  per_stream& operator=(const per_stream&) = delete;
  ~per_stream() {
    for (auto& place : lanes_) delete place.load();
  }

  using calls::try_allocate, calls::deallocate, calls::record_stream;
  /// Null also where host memory for the first lane ran out.
  [[nodiscard]] void* try_allocate(std::size_t bytes, stream_id stream = {}) noexcept {
    lane_type* const at = lane_of(stream);
    return at != nullptr ? at->try_allocate(bytes, stream) : nullptr;
  }

  /// A mistaken address may be noticed only when a thread next allocates or looks; the program then ends in that thread.
  void deallocate(void* p) noexcept { hand_back({p, unlimited}); }
  void deallocate(void* p, std::size_t bytes) noexcept {
    if (p != nullptr && bytes > max_request) fatal("deallocate: not the requested size", p);
    hand_back({p, bytes});
  }
  [[nodiscard]] bool try_deallocate(void* p) noexcept {
    lane_type* const at = owner_of(p);
    return at != nullptr && at->look([p](allocator& in) { return in.try_deallocate(p); });
  }
  [[nodiscard]] bool record_stream(void* p, stream_id stream) noexcept {
    lane_type* const at = owner_of(p, "record_stream");
    return at != nullptr && at->note([=](allocator& in) { return in.record_stream(p, stream); });
  }
  [[nodiscard]] bool try_record_stream(void* p, stream_id stream) noexcept {
    lane_type* const at = owner_of(p);
    return at != nullptr && at->note([=](allocator& in) { return in.try_record_stream(p, stream); });
  }
  /// What allocate_in_place asks for; a block of another lane is not passed on.
  [[nodiscard]] bool reuse_in_place(void* p, std::size_t bytes, stream_id stream) noexcept {
    lane_type* const at = owner_of(p);
    return at != nullptr && at == lane_of(stream) &&
           at->look([=](allocator& in) { return in.reuse_in_place(p, bytes, stream); });
  }
  /// Goes from lane to lane.
  void trim(std::size_t keep = 0) noexcept {
    for_each_lane([&](lane_type& l) {
      l.look([&](allocator& in) {
        const std::size_t here = in.now().reserved;
        const std::size_t all = budget_.taken();
        const std::size_t elsewhere = all > here ? all - here : 0;
        in.trim(keep > elsewhere ? keep - elsewhere : 0);
      });
    });
  }

  /// The callback may use the allocator, but not end it. While callbacks run, a thread in need does without them.
  [[nodiscard]] bool on_pressure(bool (*call)(void* context) noexcept, void* context) noexcept {
    users_.check<Observer>(user_calls::lock::settings);
    const std::lock_guard lock(mutex_);
    return pressure_.add(call, context);
  }
  /// As in caching_allocator: of the stream's lane, with what all lanes hold, looked at one after the other.
  [[nodiscard]] out_of_memory failure(std::size_t bytes, stream_id stream = {}) noexcept {
    const auto each = [this](auto f) { this->for_each_lane(f); };
    return out_of_memory(explain_failure_among(lane_of(stream), each, bytes, stream));
  }
  /// Sums over the lanes, one after the other.
  [[nodiscard]] usage now() const noexcept {
    usage sum;
    for_each_lane([&](lane_type& l) { l.look([&](allocator& in) { add_to(sum, in.now()); }); });
    const std::size_t limit = budget_.limit();
    sum.limit = limit < device_.capacity() ? limit : device_.capacity();
    sum.has_limit = limit != unlimited;
    return sum;
  }
  /// The same. Peaks are sums of the lanes' peaks, so upper bounds; that of what the device gave is of all lanes together.
  [[nodiscard]] auto statistics() const noexcept
    requires Counting::keeps_statistics
  {
    tessera::statistics<Recipe::pools::count> sum;
    for_each_lane([&](lane_type& l) { l.look([&](allocator& in) { add_to(sum, in.statistics()); }); });
    const auto most = static_cast<std::int64_t>(budget_.peak());
    for (counter* c : {&sum.device_bytes, &sum.all.reserved_bytes}) c->peak = (std::min)(c->peak, most);
    return sum;
  }
  void reset_peak_statistics() noexcept {
    for_each_lane([](lane_type& l) { l.look([](allocator& in) { in.reset_peak_statistics(); }); });
    budget_.reset_peak();
  }
  void reset_accumulated_statistics() noexcept {
    for_each_lane([](lane_type& l) { l.look([](allocator& in) { in.reset_accumulated_statistics(); }); });
  }
  [[nodiscard]] std::size_t footprint() const noexcept {
    std::size_t bytes = directory_.footprint();
    for_each_lane([&](lane_type& l) {
      bytes += sizeof(lane_type) + l.look([](allocator& in) { return in.footprint(); });
    });
    return bytes;
  }
  [[nodiscard]] const char* audit() const noexcept {
    const char* broken = nullptr;
    for_each_lane([&](lane_type& l) {
      if (broken == nullptr) broken = l.look([](allocator& in) { return in.audit(); });
    });
    return broken;
  }
  [[nodiscard]] std::size_t lanes() const noexcept {
    return static_cast<std::size_t>(
        std::count_if(lanes_.begin(), lanes_.end(), [](auto& l) { return l.load(); }));
  }
  /// Calls f with the settings, which all lanes take over afterwards, one after the other; f must not use the allocator.
  /// Which streams share blocks was settled when it was made.
  template <typename F>
  void with_settings(F f) {
    lend("with_settings: the function must not use the allocator", [&] { f(settings_); });
    const std::lock_guard lock(mutex_);
    budget_.set_limit(settings_.growth.limit(device_.capacity()));
    for_each_lane([&](lane_type& l) { l.enter([&](allocator& in) { in.settings() = settings_; }); });
  }
  /// Calls f with the provider; unless that is thread-safe, nobody else calls it then, and f must not use the allocator.
  template <typename F>
  decltype(auto) with_device(F f) {
    const auto call = [&]() -> decltype(auto) { return device_.with_device(f); };
    if constexpr (is_thread_safe<Provider>) return call();
    if constexpr (!is_thread_safe<Provider>) return lend("with_device: f must not use the allocator", call);
  }
  /// Calls f with the sink, which is told nothing meanwhile; f must not use the allocator.
  template <typename F>
  decltype(auto) with_observer(F f) {
    return lend("with_observer: the function must not use the allocator", [&]() -> decltype(auto) {
      const std::lock_guard telling(sink_mutex_);
      return f(observer_);
    });
  }
  /// Calls f with that of the lane in whose segments an address lies, if there is one.
  void enter_owner(const void* p, auto f) {
    if (lane_type* const at = owner_of(p)) at->look(f);
  }
  /// Calls f with the allocator of each lane, one after the other, for tools that look at it; f must not use this one.
  template <typename F>
  void enter_each(F f) {
    for_each_lane([&](lane_type& l) { l.lend("enter_each: the function must not use all lanes", f); });
  }

 private:
  friend watched<per_stream>;
  static constexpr std::size_t most_steps = 8;
  void watch(int change) noexcept {
    for_each_lane([=](lane_type& l) { l.watch(change); });
  }
  /// Calls f, a function of the user, while no lane is made.
  template <typename F>
  decltype(auto) lend(const char* rule, F f) {
    users_.check<Observer>(user_calls::lock::settings);
    const std::lock_guard lock(mutex_);
    const watched<per_stream> here(*this);
    const user_calls::call noted(users_, user_calls::lock::device, rule);
    return f();
  }

  /// The lane of a stream: the first of a few places that has it or is empty, and where others have all of them, one of
  /// those. Null where host memory for the first of all lanes ran out.
  [[nodiscard]] lane_type* lane_of(stream_id stream) noexcept {
    const stream_id key = streams_.reuse_key(stream);
    const auto first = static_cast<std::size_t>((key.handle * 0x9E3779B97F4A7C15u) >> 56);
    for (std::size_t step = 0; step < most_steps; ++step) {
      lane_type* const here = lanes_[(first + step) % most_lanes].load(std::memory_order_acquire);
      if (here == nullptr) return make_lane(key, first);
      if (here->key() == key) return here;
    }
    return lanes_[(first + key.handle % most_steps) % most_lanes].load(std::memory_order_acquire);
  }
  [[nodiscard, gnu::noinline]] lane_type* make_lane(stream_id key, std::size_t first) noexcept {
    users_.check<Observer>(user_calls::lock::settings);
    const std::lock_guard lock(mutex_);
    for (std::size_t step = 0; step < most_steps; ++step) {
      const std::size_t number = (first + step) % most_lanes;
      lane_type* here = lanes_[number].load(std::memory_order_acquire);
      if (here != nullptr && here->key() == key) return here;
      if (here != nullptr) continue;
      const auto owner = static_cast<pagemap::owner_number>(number);
      here = new (std::nothrow)
          lane_type(key, users_, {budget_, device_, directory_, owner, &empty_others, this}, settings_,
                    lane_sink<Observer>(observer_, sink_mutex_, users_));
      if (here != nullptr && here->on_pressure(&shared_hooks::run, &pressure_)) {
        lanes_[number].store(here, std::memory_order_release);
        return here;
      }
      delete here;
      break;
    }
    for (std::size_t step = 0; step < most_lanes; ++step) {
      if (lane_type* const other = lanes_[(first + step) % most_lanes].load()) return other;
    }
    return nullptr;
  }
  void hand_back(hand_over::item freed) noexcept {
    if (lane_type* const at = owner_of(freed.address, "deallocate")) at->deallocate(freed);
  }
  /// The lane in whose segments an address lies; null where there is none, unless `call` says that this is a mistake.
  [[nodiscard]] lane_type* owner_of(const void* p, const char* call = nullptr) const noexcept {
    const pagemap::owner_number owner = directory_.owner_of(p);
    if (owner != pagemap::no_owner) return lanes_[owner].load(std::memory_order_acquire);
    if (call != nullptr && p != nullptr) refuse_stranger(call, p);
    return nullptr;
  }
  template <typename F>
  void for_each_lane(F f) const {
    for (const auto& place : lanes_) {
      if (lane_type* const l = place.load(std::memory_order_acquire)) f(*l);
    }
  }

  /// What a lane calls that can get no memory, without its mutex.
  static bool empty_others(void* lanes, pagemap::owner_number but) noexcept {
    bool any = false;
    auto& all = static_cast<per_stream*>(lanes)->lanes_;
    for (std::size_t i = 0; i < most_lanes; ++i) {
      lane_type* const other = i != but ? all[i].load(std::memory_order_acquire) : nullptr;
      if (other != nullptr) any = other->empty() || any;
    }
    return any;
  }

  shared_provider<Provider> device_;
  pagemap directory_;
  policies<Recipe> settings_;
  const typename Recipe::streams streams_;
  Observer observer_;
  std::mutex sink_mutex_;
  byte_budget budget_;
  std::mutex mutex_;  // of making lanes, of the settings and of adding callbacks
  shared_hooks pressure_;
  user_calls users_;
  std::array<std::atomic<lane_type*>, most_lanes> lanes_{};
};

/// Says to adaptor/configured.hpp that threads share an allocator by one mutex for each stream.
struct in_streams {
  template <typename Recipe, device_provider Provider, event_observer Observer, typename Counting>
  using allocator = per_stream<Recipe, Provider, Observer, Counting>;
};

}  // namespace tessera
