// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <mutex>
#include <new>
#include <thread>
#include <utility>

#include <tessera/concurrent/behind_mutex.hpp>
#include <tessera/concurrent/reentrancy_guard.hpp>
#include <tessera/concurrent/remote_free_queue.hpp>
#include <tessera/core/allocator_event.hpp>
#include <tessera/core/bytes.hpp>
#include <tessera/core/oom_report.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/detail/pagemap.hpp>
#include <tessera/detail/sums.hpp>
#include <tessera/observe/explain_failure.hpp>
#include <tessera/observe/oom_advice.hpp>
#include <tessera/provider/byte_budget.hpp>
#include <tessera/provider/limiting.hpp>
#include <tessera/provider/registered.hpp>

namespace tessera {

/// What a lane takes for its provider: the shared one, within the budget of all lanes, its segments and what it maps
/// registered as the lane's. Others who cache memory of it are the other lanes.
template <typename Device>
class lane_device : public within_budget<Device, registered, true> {
 public:
  using number = pagemap::owner_number;
  /// Has all lanes but one empty their caches; whether something was given back.
  using function = bool (*)(void* lanes, number but) noexcept;

  lane_device(byte_budget& budget, Device& to, pagemap& directory, number own, function empty_others,
              void* lanes) noexcept
      : within_budget<Device, registered, true>(budget, to, directory, own),
        own_(own),
        empty_others_(empty_others),
        lanes_(lanes) {}

  bool reclaim() noexcept {
    bool any = empty_others_(lanes_, own_);
    if constexpr (requires(Device& d) { d.reclaim(); }) any = this->to().reclaim() || any;
    return any;
  }

 private:
  number own_;
  function empty_others_;
  void* lanes_;
};

/// Functions that a user asked to be called under pressure, for all lanes: without a lock, and not while they run.
class shared_hooks {
 public:
  using function = bool (*)(void* context) noexcept;

  shared_hooks() = default;
  shared_hooks(const shared_hooks&) = delete;
  shared_hooks& operator=(const shared_hooks&) = delete;
  ~shared_hooks() {
    for (hook* h = first_.load(); h != nullptr;) delete std::exchange(h, h->next.load());
  }

  /// False where host memory ran out.
  ///   Requires:  one call at a time
  [[nodiscard]] bool add(function call, void* context) noexcept {
    auto* const made = new (std::nothrow) hook{call, context, nullptr};
    std::atomic<hook*>* at = &first_;
    while (at->load() != nullptr) at = &at->load()->next;
    at->store(made);
    return made != nullptr;
  }
  /// Calls all of a shared_hooks; whether any said true.
  static bool run(void* hooks) noexcept {
    auto& self = *static_cast<shared_hooks*>(hooks);
    if (self.first_.load() == nullptr || self.running_.exchange(true)) return false;
    bool any = false;
    for (const hook* h = self.first_.load(); h != nullptr; h = h->next.load())
      any = h->call(h->context) || any;
    self.running_ = false;
    return any;
  }

 private:
  struct hook {
    function call;
    void* context;
    std::atomic<hook*> next;
  };
  std::atomic<hook*> first_{nullptr};
  std::atomic<bool> running_{false};
};

/// A sink that lanes share: one of them tells it something at a time.
template <event_observer Observer>
class lane_sink {
 public:
  lane_sink(Observer& to, std::mutex& mutex, user_calls& users) noexcept
      : to_(&to), mutex_(&mutex), users_(&users) {}
  void on(const allocator_event& event) noexcept {
    users_->check<Observer>(user_calls::lock::observer);
    const std::lock_guard lock(*mutex_);
    users_->tell(*to_, event);
  }

 private:
  Observer* to_;
  std::mutex* mutex_;
  user_calls* users_;
};
template <>
class lane_sink<ignore_events> : public ignore_events {
 public:
  lane_sink(ignore_events&, std::mutex&, user_calls&) noexcept {}
};

/// An allocator for few streams, and what other threads hand it for freeing, so that they need not wait for its mutex.
template <typename Recipe, typename Device, event_observer Observer, typename Counting>
class alignas(64) lane {
  using pool = behind_mutex<Recipe, lane_device<Device>, lane_sink<Observer>, Counting>;

 public:
  using allocator = typename pool::allocator;

  lane(stream_id key, user_calls& users, lane_device<Device> device, policies<Recipe> chosen,
       lane_sink<Observer> observer)
      : key_(key), inside_(users, std::move(device), std::move(chosen), std::move(observer)) {}
  lane(const lane&) = delete;
  lane& operator=(const lane&) = delete;
  /// What was handed over is freed, so that the sink learns of it.
  ~lane() {
    look([](allocator&) {});
  }

  /// The first stream that came here.
  [[nodiscard]] stream_id key() const noexcept { return key_; }

  [[nodiscard]] void* try_allocate(std::size_t bytes, stream_id stream) noexcept {
    return inside_.try_allocate(bytes, stream, [this](allocator& in) {
      for (std::size_t n = 0; n < hand_over::capacity; ++n) {
        const hand_over::item next = freed_.take();
        if (next.address == nullptr) break;
        free(in, next);
      }
      if (has_uses_.load(std::memory_order_relaxed)) has_uses_.store(in.has_recorded_streams());
      const std::thread::id me = std::this_thread::get_id();
      if (user_.load(std::memory_order_relaxed) != me) user_.store(me, std::memory_order_relaxed);
    });
  }

  /// Frees a block now where that disturbs nobody; else it is freed when somebody next allocates or looks here.
  ///   Requires:  its address lies in a segment of this lane
  void deallocate(hand_over::item freed) noexcept {
    // A stream that is noted may end after this call, so that its event must be recorded now.
    const bool may_wait = user_.load(std::memory_order_relaxed) != std::this_thread::get_id() &&
                          !has_uses_.load(std::memory_order_relaxed);
    if (may_wait && freed_.push(freed)) return;
    inside_.enter([&](allocator& in) {
      if (may_wait) drain(in);
      free(in, freed);
    });
  }

  /// Calls f(allocator), which notes a stream for a block, as look does.
  template <typename F>
  [[nodiscard]] bool note(F f) noexcept {
    return look([&](allocator& in) {
      const bool noted = f(in);
      if (in.has_recorded_streams()) has_uses_.store(true);
      return noted;
    });
  }

  /// Calls f(allocator) with the mutex held, once everything that was handed over is freed.
  template <typename F>
  decltype(auto) look(F&& f) noexcept {
    return inside_.enter([&](allocator& in) -> decltype(auto) {
      drain(in);
      return std::forward<F>(f)(in);
    });
  }
  /// The same for a function of the user.
  template <typename F>
  void lend(const char* rule, F&& f) {
    look([](allocator&) {});
    inside_.lend(rule, std::forward<F>(f));
  }
  void watch(int change) noexcept { inside_.watch(change); }
  /// The same without that.
  template <typename F>
  decltype(auto) enter(F&& f) noexcept {
    return inside_.enter(std::forward<F>(f));
  }
  /// Empties the cache for the sake of another lane, and waits for those who are at that already; whether that gave
  /// something back.
  bool empty() noexcept {
    look([](allocator&) {});
    return inside_.trim_after_calls();
  }
  [[nodiscard]] bool on_pressure(bool (*call)(void* context) noexcept, void* context) noexcept {
    return inside_.on_pressure(call, context);
  }

 private:
  static void free(allocator& in, hand_over::item freed) noexcept {
    freed.bytes == unlimited ? in.deallocate(freed.address) : in.deallocate(freed.address, freed.bytes);
  }
  void drain(allocator& in) noexcept {
    freed_.take_all([&in](hand_over::item next) { free(in, next); });
  }

  const stream_id key_;
  std::atomic<std::thread::id> user_{};  // who allocated here last
  std::atomic<bool> has_uses_{false};    // false: no block here has a stream noted
  alignas(64) pool inside_;
  hand_over freed_;
};

/// What the allocator of one lane, which may be null, says of a failure, with what all lanes hold; `for_each_lane(f)` calls
/// f(lane) for each.
template <typename Lane, typename ForEachLane>
[[nodiscard]] oom_report explain_failure_among(Lane* in_need, ForEachLane for_each_lane, std::size_t bytes,
                                               stream_id stream) noexcept {
  const auto report = [=](typename Lane::allocator& in) {
    return explain_failure(in.introspect(), in.settings(), bytes, stream);
  };
  if (in_need == nullptr)
    return {.requested = bytes, .stream = stream, .block = bytes, .segment = bytes, .wanted = bytes};
  oom_report told = in_need->look(report);
  const std::size_t wanted_rounding = oom_report::above(told.block, align_up(told.requested, 512));
  for_each_lane([&](Lane& lane) {
    if (&lane == in_need || told.is_absurd()) return;
    const oom_report other = lane.look(report);
    add_to(told.now, other.now);
    told.elsewhere += other.now.cached;
    told.rounding += oom_report::above(other.rounding, wanted_rounding);
    told.unsplit += other.unsplit;
    told.pinned += other.pinned;
    told.pinning += other.pinning;
    told.pages_in_place += other.pages_in_place;
    told.pages_stitched += other.pages_stitched;
    told.idle += other.idle;
    told.idle_later += other.idle_later;
    for (const oom_report::pin& p : other.pins) told.rank(p);
  });
  told.available = oom_report::least(told.available, oom_report::above(told.capacity, told.now.reserved));
  told.device_is_limited = false;  // the budget of the lanes is the limit of growth
  advise(told);
  return told;
}

}  // namespace tessera
