// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <new>
#include <type_traits>
#include <utility>

#include <tessera/concurrent/arena.hpp>
#include <tessera/concurrent/mutex_guarded.hpp>
#include <tessera/core/allocator_event.hpp>
#include <tessera/core/error.hpp>
#include <tessera/core/fatal.hpp>
#include <tessera/core/pool_checkpoint.hpp>
#include <tessera/core/private_pool.hpp>
#include <tessera/core/statistics.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/detail/ask_policies.hpp>
#include <tessera/detail/caller_mistake.hpp>
#include <tessera/detail/pagemap.hpp>
#include <tessera/facade.hpp>
#include <tessera/fwd.hpp>
#include <tessera/provider/serialized_provider.hpp>

namespace tessera {

/// A caching_allocator for several threads. Each stream has an arena, which is an allocator with its own
/// mutex. If the streams policy gives all streams one key, there is one arena.
///
/// Choose it if many threads allocate, mostly on their own streams. It lacks handles, process_events,
/// trim_without_waiting, sleep, shares, memory sources and checkpoints of caching_allocator. No free block and no
/// idle page serves a stream of another arena. So a recipe that reuses blocks across streams, such as cuda_async,
/// fails more often when memory is short.
///
///     tessera::per_stream<tessera::pytorch<>, tessera::simulated_device> shared;
///     void* p = shared.allocate(5_MiB, tessera::stream_id{1});  // in the arena of stream 1
///     shared.deallocate(p);                                     // by any thread
///
/// * At most 256 arenas are created on demand, and never destroyed. Further streams share them.
/// * A free by any thread but the last that allocated from the arena is queued, unless streams are recorded.
///   The next call that enters the arena processes it and detects a wrong address. current_usage() and
///   statistics() also enter each arena, so they may release segments.
/// * The limit of growth holds for all arenas together. If the recipe recovers by emptying the cache, all
///   arenas empty their caches. Another thread may take the released memory. The allocator retries up to
///   eight times.
/// * The observer receives one event at a time, in the order of each arena.
/// * A private pool has a part in each arena, under one pool_id. A scope directs the requests of all arenas,
///   which may call the condition of its stream_filter at the same time.
/// * An arena polls events only when a call enters it.
/// * A policy sees the usage of its own arena, with the limit of all arenas.
/// * If the recipe maps pages into ranges, each arena has its own ranges.
/// * Each arena locks and unlocks its mutex as `locked` does. The rules of `locked` for user code apply here,
///   too.
///
/// Apart from this list, it makes the same decisions as a caching_allocator if one thread uses it.
template <typename Recipe, device_provider Provider, allocator_observer Observer, typename Counting>
class per_stream
    : public facade<per_stream<Recipe, Provider, Observer, Counting>,
                    detail::arena<Recipe, detail::serialized_provider<Provider>, Observer, Counting>> {
  using arena = detail::arena<Recipe, detail::serialized_provider<Provider>, Observer, Counting>;
  using allocator = typename arena::allocator;
  using facade_type = facade<per_stream, arena>;
  using guard = detail::reentrancy_guard;

 public:
  static constexpr std::size_t max_arenas = 256;

  per_stream() : per_stream(Provider{}) {}
  explicit per_stream(Provider device, policies<Recipe> settings = {}, Observer observer = {})
      : device_(std::move(device)),
        settings_(std::move(settings)),
        streams_(settings_.streams),
        observer_(std::move(observer)),
        budget_(settings_.growth.limit.on(device_.capacity())) {}
  per_stream(const per_stream&) = delete;
  per_stream& operator=(const per_stream&) = delete;
  ~per_stream() {
    for (auto& slot : arenas_) delete slot.load();
  }

  using facade_type::try_allocate, facade_type::deallocate;
  /// Also returns null if host memory for the first arena ran out.
  [[nodiscard]] void* try_allocate(std::size_t bytes, stream_id stream = {}) noexcept {
    arena* const own = get_arena(stream);
    return own != nullptr ? own->try_allocate(bytes, stream) : nullptr;
  }
  void deallocate(void* p) noexcept { free({p, unlimited}); }
  void deallocate(void* p, std::size_t bytes) noexcept {
    if (p != nullptr && bytes > max_request) detail::fatal("deallocate: not the requested size", p);
    free({p, bytes});
  }
  /// Trims one arena after the other.
  void trim(std::size_t keep = 0) noexcept {
    enter(*this, [&](allocator& in) {
      const std::size_t here = in.current_usage().reserved;
      const std::size_t all = budget_.taken();
      const std::size_t elsewhere = all > here ? all - here : 0;
      in.trim(keep > elsewhere ? keep - elsewhere : 0);
    });
  }
  [[nodiscard]] bool delays_reuse(stream_id owner, stream_id user) const noexcept {
    return detail::delays_reuse(streams_, owner, user);
  }
  [[nodiscard]] bool on_pressure(bool (*callback)(void* context) noexcept, void* context) noexcept {
    guard_.check_lock<Observer>(guard::lock::settings);
    const std::lock_guard lock(mutex_);
    return callbacks_.add(callback, context);
  }

  // Private pools, as in caching_allocator. All arenas have the same pools, uses and scopes.

  [[nodiscard]] pool_id create_pool(pool_options options = {}) noexcept {
    // A new arena copies the pools of another one, so there must be one.
    if (arena_count() == 0 && get_arena({}) == nullptr) return {};
    pool_id name;
    const auto create = [this, &name, options](allocator& in) {
      had_pools_ = true;
      const pool_id made = in.create_pool(options, name);
      if (made != pool_id{}) name = made;
      return made != pool_id{};
    };
    return in_all_arenas(create, [&name](allocator& in) { (void)in.release_pool(name); }) ? name : pool_id{};
  }
  [[nodiscard]] bool retain_pool(pool_id pool) noexcept {
    return in_all_arenas([=](allocator& in) { return in.retain_pool(pool); });
  }
  [[nodiscard]] bool release_pool(pool_id pool) noexcept {
    return in_all_arenas([=](allocator& in) { return in.release_pool(pool); });
  }
  [[nodiscard]] std::size_t uses_of_pool(pool_id pool) const noexcept {
    std::size_t uses = 0;
    for_each_arena([&](arena& a) {
      uses = (std::max)(uses, a.enter([=](const allocator& in) { return in.uses_of_pool(pool); }));
    });
    return uses;
  }
  [[nodiscard]] bool has_pool(pool_id pool) const noexcept {
    return enter(*this, [=](const allocator& in) { return in.has_pool(pool); });
  }
  [[nodiscard]] bool begin_allocate_to_pool(pool_id pool, stream_filter streams,
                                            scope_kind kind = scope_kind::capture) noexcept {
    return in_all_arenas([=](allocator& in) { return in.begin_allocate_to_pool(pool, streams, kind); },
                         [=](allocator& in) { (void)in.end_allocate_to_pool(pool); });
  }
  [[nodiscard]] bool end_allocate_to_pool(pool_id pool) noexcept {
    return in_all_arenas([=](allocator& in) { return in.end_allocate_to_pool(pool); });
  }
  [[nodiscard]] bool is_capturing() const noexcept {
    return enter(*this, [](const allocator& in) { return in.is_capturing(); });
  }
  void trim_pool(pool_id pool) noexcept {
    enter(*this, [=](allocator& in) { in.trim_pool(pool); });
  }
  detail::missing::per_stream_has_no_memory_sources create_pool(const memory_source& from,
                                                                pool_options options = {}) noexcept;
  detail::missing::per_stream_has_no_checkpoints checkpoint_pool(pool_id pool) noexcept;
  detail::missing::per_stream_has_no_checkpoints restore_pool(const pool_checkpoint& checkpoint) noexcept;
  detail::missing::per_stream_has_no_shares set_share(pool_id pool, pool_share share) noexcept;
  [[nodiscard]] detail::missing::per_stream_has_no_shares share_of(pool_id pool) const noexcept;
  [[nodiscard]] detail::missing::per_stream_has_no_shares bytes_of_pool(pool_id pool) const noexcept;
  detail::missing::per_stream_has_no_sleep sleep(sleep_contents contents, stream_id copies = {}) noexcept;
  detail::missing::per_stream_has_no_sleep sleep_pool(pool_id pool, sleep_contents contents,
                                                      stream_id copies = {}) noexcept;
  detail::missing::per_stream_has_no_sleep wake(stream_id copies = {}) noexcept;
  detail::missing::per_stream_has_no_sleep wake_pool(pool_id pool, stream_id copies = {}) noexcept;
  /// Whether an arena has put its part of a pool to sleep, by for_each_allocator or with_arena.
  [[nodiscard]] bool is_asleep(pool_id pool = {}) const noexcept {
    return enter(*this, [=](const allocator& in) { return in.is_asleep(pool); });
  }

  /// Returns the exception that allocate would throw. It has the numbers of the stream's arena and the usage
  /// of all arenas.
  [[nodiscard]] out_of_memory make_out_of_memory(std::size_t bytes, stream_id stream = {}) noexcept {
    detail::oom_numbers numbers{.requested = bytes, .block = bytes, .segment = bytes, .stream = stream};
    (void)with_arena(stream,
                     [&](allocator& in) { numbers = in.make_out_of_memory(bytes, stream).numbers(); });
    numbers.now = current_usage();
    return out_of_memory(numbers);
  }
  /// Adds up the arenas, one after the other. While other threads allocate, the sum may exceed the limit.
  [[nodiscard]] usage current_usage() const noexcept {
    usage sum = facade_type::current_usage();
    const std::size_t limit = budget_.limit();
    sum.limit = (std::min)(limit, device_.capacity());
    sum.has_limit = limit != unlimited;
    return sum;
  }
  /// Adds up the arenas. Peaks are sums of the arenas' peaks, so they are upper bounds. The peak of
  /// reserved bytes is a closer bound; it is exact if the device is called by one thread at a time.
  [[nodiscard]] auto statistics() const noexcept
    requires Counting::keeps_statistics
  {
    tessera::statistics<Recipe::pools::count> sum =
        enter(*this, [](const allocator& in) { return in.statistics(); });
    const auto peak = static_cast<std::int64_t>(budget_.peak());
    for (counter* c : {&sum.device_bytes, &sum.all.reserved_bytes}) c->peak = (std::min)(c->peak, peak);
    return sum;
  }
  void reset_peak_statistics() noexcept
    requires Counting::keeps_statistics
  {
    enter(*this, [](allocator& in) { in.reset_peak_statistics(); });
    budget_.reset_peak();
  }
  void reset_accumulated_statistics() noexcept
    requires Counting::keeps_statistics
  {
    enter(*this, [](allocator& in) { in.reset_accumulated_statistics(); });
  }
  [[nodiscard]] std::size_t footprint() const noexcept {
    return map_.footprint() + arena_count() * sizeof(arena) + facade_type::footprint();
  }
  [[nodiscard]] std::size_t arena_count() const noexcept {
    std::size_t count = 0;
    for_each_arena([&count](arena&) { ++count; });
    return count;
  }

  /// Calls f(policies), then copies the policies to all arenas, one after the other. The streams policy does
  /// not change.
  template <typename F>
  void with_policies(F f) {
    call_for_user("with_policies: the function must not use the allocator", [&] { f(settings_); });
    const std::lock_guard lock(mutex_);
    budget_.set_limit(settings_.growth.limit.on(device_.capacity()));
    enter(*this, [this](allocator& in) { in.policies() = settings_; });
  }
  template <typename F>
  decltype(auto) with_provider(F f) {
    const auto call = [&]() -> decltype(auto) { return device_.with_provider(f); };
    if constexpr (detail::is_thread_safe<Provider>) {
      return call();
    } else {
      return call_for_user("with_provider: the function must not use the allocator", call);
    }
  }
  template <typename F>
  decltype(auto) with_observer(F f) {
    return call_for_user("with_observer: the function must not use the allocator", [&]() -> decltype(auto) {
      const std::lock_guard reporting(observer_mutex_);
      return f(observer_);
    });
  }
  template <typename F>
  void for_each_allocator(F f) {
    for_each_arena(
        [&](arena& a) { a.enter_for_user("for_each_allocator: the function must not use all arenas", f); });
  }
  template <typename F>
  void for_each_device(F f) {
    f(*this, std::size_t{0});
  }
  /// Calls f(caching_allocator) for the arena of a stream, with its mutex held. Returns false if host memory
  /// for it ran out.
  template <typename F>
  bool with_arena(stream_id stream, F f) noexcept {
    arena* const own = get_arena(stream);
    if (own != nullptr) own->enter([&f](allocator& in) { f(in); });
    return own != nullptr;
  }
  /// Calls f(caching_allocator) for each arena except the arena of a stream, one after the other, with its
  /// mutex held.
  template <typename F>
  void for_each_other_arena(stream_id stream, F f) noexcept {
    const arena* const own = get_arena(stream);
    for_each_arena([&](arena& a) {
      if (&a != own) a.enter([&f](allocator& in) { f(in); });
    });
  }

 private:
  friend facade_type;
  static constexpr std::size_t max_probes = 8;

  /// Calls f(allocator) for each arena, one after the other, and combines the results.
  template <typename F>
  static auto enter(const per_stream& me, F f) {
    using result = std::remove_cvref_t<std::invoke_result_t<F&, allocator&>>;
    if constexpr (std::is_void_v<result>) {
      me.for_each_arena([&f](arena& a) { a.enter(f); });
    } else {
      result sum{};
      me.for_each_arena([&](arena& a) { detail::add_to(sum, a.enter(f)); });
      return sum;
    }
  }
  template <typename F>
  static auto enter_owner(per_stream& me, const void* p, const char* call, F f) {
    arena* const owner = call != nullptr ? me.find_owner_or_abort(p, call) : me.find_owner(p);
    using result = decltype(owner->enter(f));
    return owner != nullptr ? owner->enter(f) : result();
  }
  /// Calls the user function f, and prevents the creation of arenas meanwhile.
  template <typename F>
  decltype(auto) call_for_user(const char* rule, F f) {
    guard_.check_lock<Observer>(guard::lock::settings);
    const std::lock_guard lock(mutex_);
    const guard::call running(guard_, guard::lock::device, rule);
    return f();
  }

  /// Finds or creates the arena of a stream: in the first of eight slots that holds the stream or is empty.
  /// If other streams own all eight, one of them is shared. Null if host memory for the very first arena ran
  /// out.
  [[nodiscard]] arena* get_arena(stream_id stream) noexcept {
    const stream_id key = streams_.reuse_key(stream);
    const auto first = static_cast<std::size_t>((key.handle * 0x9E3779B97F4A7C15u) >> 56);
    for (std::size_t probe = 0; probe < max_probes; ++probe) {
      arena* const found = arenas_[(first + probe) % max_arenas].load(std::memory_order_acquire);
      if (found == nullptr) return create_arena(key, first);
      if (found->key() == key) return found;
    }
    return arenas_[(first + key.handle % max_probes) % max_arenas].load(std::memory_order_acquire);
  }
  [[nodiscard, gnu::noinline]] arena* create_arena(stream_id key, std::size_t first) noexcept {
    guard_.check_lock<Observer>(guard::lock::settings);
    const std::lock_guard lock(mutex_);
    for (std::size_t probe = 0; probe < max_probes; ++probe) {
      const std::size_t number = (first + probe) % max_arenas;
      arena* const found = arenas_[number].load(std::memory_order_acquire);
      if (found != nullptr && found->key() == key) return found;
      if (found != nullptr) continue;
      const auto owner = static_cast<detail::pagemap::owner_number>(number);
      auto* const created = new (std::nothrow)
          arena(key, guard_, {budget_, device_, map_, owner, &empty_others, this}, settings_,
                detail::forwarding_observer<Observer, true>(observer_, guard_, &observer_mutex_));
      if (created != nullptr && created->on_pressure(&detail::shared_callbacks::run, &callbacks_) &&
          copy_used_pools(*created)) {
        arenas_[number].store(created, std::memory_order_release);
        return created;
      }
      delete created;
      break;
    }
    for (std::size_t probe = 0; probe < max_arenas; ++probe) {
      if (arena* const other = arenas_[(first + probe) % max_arenas].load()) return other;
    }
    return nullptr;
  }
  /// Gives a new arena the private pools of the others. Returns false if host memory ran out.
  [[nodiscard]] bool copy_used_pools(arena& to) noexcept {
    if (!had_pools_) return true;  // then creation does not wait for another arena
    arena* from = nullptr;
    for_each_arena([&from](arena& a) { from = &a; });
    return from == nullptr || from->enter([&to](const allocator& in) {
      return to.enter([&in](allocator& fresh) { return fresh.copy_used_pools(in); });
    });
  }
  /// Calls f(allocator) for each arena, and creates no arena meanwhile. If one call returns false, makes no
  /// further call, and undoes those before.
  ///   Returns:  whether all calls returned true, and there is an arena
  template <typename F, typename Undo>
  [[nodiscard]] bool in_all_arenas(F f, Undo undo) noexcept {
    guard_.check_lock<Observer>(guard::lock::settings);
    const std::lock_guard lock(mutex_);
    std::size_t done = 0;
    bool all = true;
    for_each_arena([&](arena& a) {
      all = all && a.enter(f);
      done += all ? 1 : 0;
    });
    if (all) return done > 0;
    for_each_arena([&](arena& a) {
      if (done > 0) a.enter(undo), --done;
    });
    return false;
  }
  /// For calls that return the same in all arenas, because these have the same pools.
  template <typename F>
  [[nodiscard]] bool in_all_arenas(F f) noexcept {
    return in_all_arenas(f, [](allocator&) {});
  }
  void free(detail::remote_free_queue::item freed) noexcept {
    if (arena* const owner = find_owner_or_abort(freed.address, "deallocate")) owner->deallocate(freed);
  }
  /// Returns the arena whose segments contain an address, or null.
  [[nodiscard]] arena* find_owner(const void* p) const noexcept {
    const detail::pagemap::owner_number owner = map_.owner_of(p);
    return owner != detail::pagemap::no_owner ? arenas_[owner].load(std::memory_order_acquire) : nullptr;
  }
  /// Like find_owner, but aborts if no arena contains a non-null address. The message names `call`.
  [[nodiscard]] arena* find_owner_or_abort(const void* p, const char* call) const noexcept {
    arena* const owner = find_owner(p);
    if (owner == nullptr && p != nullptr) detail::refuse_stranger(call, p);
    return owner;
  }
  template <typename F>
  void for_each_arena(F f) const {
    for (const auto& slot : arenas_) {
      if (arena* const a = slot.load(std::memory_order_acquire)) f(*a);
    }
  }

  /// An arena that can get no memory calls this without its mutex.
  static bool empty_others(void* self, detail::pagemap::owner_number except) noexcept {
    bool any = false;
    auto& arenas = static_cast<per_stream*>(self)->arenas_;
    for (std::size_t i = 0; i < max_arenas; ++i) {
      arena* const other = i != except ? arenas[i].load(std::memory_order_acquire) : nullptr;
      if (other != nullptr) any = other->empty_cache() || any;
    }
    return any;
  }

  detail::serialized_provider<Provider> device_;
  detail::pagemap map_;
  policies<Recipe> settings_;
  const typename Recipe::streams streams_;
  Observer observer_;
  std::mutex observer_mutex_;
  detail::byte_budget budget_;
  std::mutex mutex_;  // guards the creation of arenas, the settings, the callbacks and had_pools_
  bool had_pools_ = false;
  detail::shared_callbacks callbacks_;
  detail::reentrancy_guard guard_;
  std::array<std::atomic<arena*>, max_arenas> arenas_{};
};

}  // namespace tessera
