// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <exception>
#include <initializer_list>
#include <mutex>
#include <new>
#include <tuple>
#include <type_traits>
#include <utility>

#include <tessera/allocator_adaptor.hpp>
#include <tessera/concurrent/arena.hpp>
#include <tessera/concurrent/indexed.hpp>
#include <tessera/concurrent/mutex_guarded.hpp>
#include <tessera/detail/blocks/checks.hpp>
#include <tessera/detail/policies/ask_policies.hpp>
#include <tessera/fwd.hpp>

namespace tessera::inline v0_1::concurrent {

/// A caching_allocator for several threads. Each stream has an arena, which is an allocator with its own
/// mutex. If the streams policy gives all streams one key, there is one arena. Other front ends go around.
///
/// Choose it if many threads allocate, mostly on their own streams. It lacks handles, process_events,
/// trim_without_waiting and pool_upstream, and the extensions that need all memory, such as quotas. No free block and no
/// idle page serves a stream of another arena. So a recipe that reuses blocks across streams, such as cuda_async,
/// fails more often when memory is short.
///
///     tessera::concurrent::per_stream<tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device>> shared;
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
/// Apart from this list, it makes the same decisions as a caching_allocator if one thread uses it. A call that is const
/// creates no arena, but it processes queued frees.
template <typename Allocator>
class per_stream
    : public allocator_adaptor<
          per_stream<Allocator>,
          detail::arena<Allocator, detail::serialized_provider<typename Allocator::provider_type>>> {
 public:
  using recipe_type = typename Allocator::recipe_type;
  using provider_type = typename Allocator::provider_type;

 private:
  using arena = detail::arena<Allocator, detail::serialized_provider<provider_type>>;
  using allocator = typename arena::allocator;
  using adaptor_type = allocator_adaptor<per_stream, arena>;
  using guard = detail::reentrancy_guard;
  using extensions = typename detail::arena_allocator<Allocator>::extensions;
  using shared_extensions = typename detail::arena_allocator<Allocator>::shared;
  static constexpr bool keeps_statistics = requires(const allocator& in) { in.statistics(); };

 public:
  static constexpr std::size_t max_arenas = 256;  ///< further streams share the arenas of others
  static constexpr bool has_ranges = Allocator::has_ranges;
  template <typename E>
  using refused = std::conditional_t<
      detail::spans_arenas<E>, void,
      detail::missing::an_arena_has_only_a_part_of_the_memory_so_use_locked_for_this_extension>;
  template <typename E>
  static constexpr bool has = Allocator::template has<E> && std::is_void_v<refused<E>>;

  per_stream() : per_stream(provider_type{}) {}
  /// Each of `given` is an extension of the allocator; the others are made by default.
  template <typename... Given>
  explicit per_stream(provider_type device, recipe::policies<recipe_type> settings = {}, Given&&... given)
      : device_(std::move(device)),
        settings_(std::move(settings)),
        streams_(settings_.streams),
        extensions_(share(static_cast<extensions*>(nullptr), std::forward<Given>(given)...)),
        budget_(settings_.growth.limit.on(device_.capacity())) {}
  per_stream& operator=(per_stream&&) = delete;
  ~per_stream() {
    for (auto& slot : arenas_) delete slot.load();
  }

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
    guard_.check_lock(guard::lock::settings);
    const std::lock_guard lock(mutex_);
    return callbacks_.add(callback, context);
  }

  // Extensions. All arenas have the same state of those that are offered, such as the same private pools.

  template <typename E, typename F>
  decltype(auto) visit_extension(F f) const {
    return answer<E>([&f](const allocator& in) { return in.template visit_extension<E>(f); });
  }
  /// An observer is called by all arenas. `f` gets it under a mutex.
  template <typename E, typename F>
  decltype(auto) visit_extension(F f) {
    if constexpr (std::is_same_v<typename detail::in_arenas<E>::shared, E>) {
      return std::as_const(*this).template visit_extension<E>(f);
    } else {
      return call_for_user(adaptor_type::only_reads, [&]() -> decltype(auto) {
        auto& all = std::get<typename detail::in_arenas<E>::shared>(extensions_);
        all.check_thread();
        const std::lock_guard reporting(all.mutex);
        return f(all);
      });
    }
  }
  /// Calls f(object) for the objects that all arenas report to.
  template <typename F>
  void for_each_observer(F f) {
    const auto visit = [&f](auto& shared) {
      if constexpr (requires { shared.visit_observer(f); }) shared.visit_observer(f);
    };
    call_for_user(adaptor_type::only_reads,
                  [&] { std::apply([&](auto&... shared) { (visit(shared), ...); }, extensions_); });
  }
  template <typename E, typename F>
  auto add_up_extension(F f) const {
    return enter(*this, [&f](const allocator& in) { return in.template visit_extension<E>(f); });
  }
  template <typename E, typename F, typename Undo = detail::ignore_arguments>
  outcome change_extension(F f, Undo undo = {}) noexcept {
    // A new arena adopts the state of another one, so there must be one.
    if (arena_count() == 0 && get_arena({}) == nullptr) return {"host memory ran out"};
    return in_all_arenas(
        [this, &f](allocator& in) {
          has_changes_ = true;
          return in.template change_extension<E>(f);
        },
        [&undo](allocator& in) { in.template visit_extension<E>(undo); });
  }

  /// Returns the exception that allocate would throw. It has the numbers of the stream's arena and the usage
  /// of all arenas.
  [[nodiscard]] out_of_memory make_out_of_memory(std::size_t bytes, stream_id stream = {}) const noexcept {
    detail::oom_numbers numbers{.requested = bytes, .block = bytes, .segment = bytes, .stream = stream};
    if (arena* const own = find_arena(streams_.reuse_key(stream)))
      own->enter([&](const allocator& in) { numbers = in.make_out_of_memory(bytes, stream).numbers(); });
    numbers.now = current_usage();
    return out_of_memory(numbers);
  }
  /// Adds up the arenas, one after the other. While other threads allocate, the sum may exceed the limit.
  [[nodiscard]] usage current_usage() const noexcept {
    usage sum = adaptor_type::current_usage();
    const std::size_t limit = budget_.limit();
    sum.limit = (std::min)(limit, device_.capacity());
    sum.has_limit = limit != unlimited;
    return sum;
  }
  /// Adds up the arenas. Peaks are upper bounds: the arenas may have had theirs at different times. No peak is above what
  /// the memory that was reserved at once can hold. Those of reserved bytes and of segments are exact if the device is
  /// called by one thread at a time.
  [[nodiscard]] auto statistics() const noexcept
    requires(keeps_statistics)
  {
    tessera::statistics<recipe_type::pools::count> sum =
        enter(*this, [](const allocator& in) { return in.statistics(); });
    const auto limit_to = [](std::size_t most, std::initializer_list<counter*> peaks) {
      const auto bound = static_cast<std::int64_t>(most);
      for (counter* c : peaks) c->peak = (std::max)(c->current, (std::min)(c->peak, bound));
    };
    const std::size_t bytes = budget_.peak(), segments = budget_.peak_pieces();
    const std::size_t blocks = bytes / min_alignment;
    const auto limit = [&](pool_statistics& in) {
      limit_to(bytes, {&in.allocated_bytes, &in.active_bytes, &in.requested_bytes, &in.reserved_bytes,
                       &in.inactive_split_bytes});
      limit_to(blocks, {&in.allocation, &in.active, &in.inactive_split});
      limit_to(segments, {&in.segment});
    };
    limit(sum.all);
    for (pool_statistics& in : sum.pool) limit(in);
    limit_to(bytes, {&sum.device_bytes});
    limit_to(blocks, {&sum.oversize_allocations});
    limit_to(segments, {&sum.oversize_segments});
    return sum;
  }
  void reset_peak_statistics() noexcept
    requires(keeps_statistics)
  {
    enter(*this, [](allocator& in) { in.reset_peak_statistics(); });
    budget_.reset_peak();
  }
  void reset_accumulated_statistics() noexcept
    requires(keeps_statistics)
  {
    enter(*this, [](allocator& in) { in.reset_accumulated_statistics(); });
  }
  [[nodiscard]] std::size_t metadata_bytes() const noexcept {
    return map_.metadata_bytes() + arena_count() * sizeof(arena) + adaptor_type::metadata_bytes();
  }
  /// How many arenas there are now. The first request of a stream makes its arena.
  [[nodiscard]] std::size_t arena_count() const noexcept {
    std::size_t count = 0;
    for_each_arena([&count](arena&) { ++count; });
    return count;
  }

  /// Calls f(policies), then copies the policies to all arenas, one after the other. The streams policy does
  /// not change. If f throws, nothing changes.
  ///   Returns:  a copy of the result of f
  template <typename F>
  auto visit_policies(F f) {
    guard_.check_lock(guard::lock::settings);
    const std::lock_guard lock(mutex_);
    recipe::policies<recipe_type> wanted = settings_;
    const detail::at_scope_end commit([&, thrown = std::uncaught_exceptions()] {
      if (std::uncaught_exceptions() > thrown) return;
      settings_ = wanted;
      budget_.set_limit(settings_.growth.limit.on(device_.capacity()));
      enter(*this, [this](allocator& in) { in.visit_policies([this](auto& own) { own = settings_; }); });
    });
    const guard::call running(guard_, guard::lock::device,
                              "visit_policies: the function must not use the allocator");
    return f(wanted);
  }
  template <typename F>
  decltype(auto) visit_provider(F f) {
    const auto call = [&]() -> decltype(auto) { return device_.visit_provider(f); };
    if constexpr (detail::is_thread_safe<provider_type>) {
      return call();
    } else {
      return call_for_user("visit_provider: the function must not use the allocator", call);
    }
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
  /// Calls f(caching_allocator, is_own) for the arena of a stream, then for each other arena, with its mutex held. Calls
  /// nothing if host memory for the first ran out.
  template <typename F>
  void visit_arenas(stream_id stream, F f) {
    arena* const own = get_arena(stream);
    if (own == nullptr) return;
    own->enter([&f](allocator& in) { f(in, true); });
    for_each_arena([&](arena& a) {
      if (&a != own) a.enter([&f](allocator& in) { f(in, false); });
    });
  }

 private:
  friend adaptor_type;
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
    guard_.check_lock(guard::lock::settings);
    const std::lock_guard lock(mutex_);
    const guard::call running(guard_, guard::lock::device, rule);
    return f();
  }

  /// Finds or creates the arena of a stream: in the first of eight slots that holds the stream or is empty.
  /// If other streams own all eight, one of them is shared. Null if host memory for the very first arena ran
  /// out.
  [[nodiscard]] arena* get_arena(stream_id stream) noexcept {
    const stream_id key = streams_.reuse_key(stream);
    arena* const found = find_arena(key);
    return found != nullptr ? found : create_arena(key);
  }
  [[nodiscard]] static std::size_t first_slot(stream_id key) noexcept {
    return static_cast<std::size_t>((key.handle * 0x9E3779B97F4A7C15u) >> 56);
  }
  /// Returns null if there is none yet.
  [[nodiscard]] arena* find_arena(stream_id key) const noexcept {
    const std::size_t first = first_slot(key);
    for (std::size_t probe = 0; probe < max_probes; ++probe) {
      arena* const found = arenas_[(first + probe) % max_arenas].load(std::memory_order_acquire);
      if (found == nullptr || found->key() == key) return found;
    }
    return arenas_[(first + key.handle % max_probes) % max_arenas].load(std::memory_order_acquire);
  }
  [[nodiscard, gnu::noinline]] arena* create_arena(stream_id key) noexcept {
    const std::size_t first = first_slot(key);
    guard_.check_lock(guard::lock::settings);
    const std::lock_guard lock(mutex_);
    for (std::size_t probe = 0; probe < max_probes; ++probe) {
      const std::size_t number = (first + probe) % max_arenas;
      arena* const found = arenas_[number].load(std::memory_order_acquire);
      if (found != nullptr && found->key() == key) return found;
      if (found != nullptr) continue;
      const auto owner = static_cast<detail::pagemap::owner_number>(number);
      auto* const created = new_arena(static_cast<extensions*>(nullptr), key, owner);
      if (created != nullptr && created->on_pressure(&detail::callback_list::run_list, &callbacks_) &&
          adopt(*created)) {
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
  template <typename... Extension>
  [[nodiscard]] arena* new_arena(std::tuple<Extension...>*, stream_id key,
                                 detail::pagemap::owner_number owner) {
    return new (std::nothrow)
        arena(key, guard_, {budget_, device_, map_, owner, &empty_others, this}, settings_,
              detail::in_arenas<Extension>::part_of(
                  std::get<typename detail::in_arenas<Extension>::shared>(extensions_))...);
  }
  /// Makes what arenas share of the extensions.
  template <typename... Extension, typename... Given>
  [[nodiscard]] static shared_extensions share(std::tuple<Extension...>*, Given&&... given) {
    static_assert((detail::is_one_of<std::remove_cvref_t<Given>, Extension...> && ...),
                  "per_stream: an argument behind the policies is no extension of the allocator");
    return shared_extensions(detail::pick_extension<Extension>(std::forward<Given>(given)...)...);
  }
  /// Gives a new arena what extensions have in the others. Returns false if host memory ran out.
  [[nodiscard]] bool adopt(arena& to) noexcept {
    if (!has_changes_) return true;  // then creation does not wait for another arena
    arena* from = nullptr;
    for_each_arena([&from](arena& a) { from = &a; });
    return from == nullptr || from->enter([&to](const allocator& in) {
      return to.enter([&in](allocator& fresh) { return fresh.adopt(in); });
    });
  }
  /// Calls f(allocator), whose answer is the same in all arenas, for one of them. Without arenas, returns a default
  /// value.
  template <typename E, typename F>
  [[nodiscard]] auto answer(F f) const {
    arena* any = nullptr;
    for_each_arena([&any](arena& a) { any = any != nullptr ? any : &a; });
    using result = decltype(any->enter(f));
    return any != nullptr ? any->enter(f) : result();
  }
  /// Calls f(allocator) for each arena, and creates no arena meanwhile. If one call fails, makes no further call, and
  /// undoes those before.
  ///   Returns:  the outcome of the first call that failed
  template <typename F, typename Undo>
  [[nodiscard]] outcome in_all_arenas(F f, Undo undo) noexcept {
    guard_.check_lock(guard::lock::settings);
    const std::lock_guard lock(mutex_);
    std::size_t done = 0;
    outcome result;
    for_each_arena([&](arena& a) {
      if (result) result = a.enter(f);
      done += result ? 1 : 0;
    });
    if (result) return result;
    for_each_arena([&](arena& a) {
      if (done > 0) a.enter(undo), --done;
    });
    return result;
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

  detail::serialized_provider<provider_type> device_;
  detail::pagemap map_;
  recipe::policies<recipe_type> settings_;
  const typename recipe_type::streams streams_;
  shared_extensions extensions_;
  detail::byte_budget budget_;
  std::mutex mutex_;          // guards the creation of arenas, the settings, the callbacks and has_changes_
  bool has_changes_ = false;  // whether extensions of the arenas were changed
  detail::callback_list callbacks_;
  detail::reentrancy_guard guard_;
  std::array<std::atomic<arena*>, max_arenas> arenas_{};
};

}  // namespace tessera::inline v0_1::concurrent
