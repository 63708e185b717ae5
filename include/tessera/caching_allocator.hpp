// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <type_traits>
#include <utility>

#include <tessera/block_handle.hpp>
#include <tessera/core/error.hpp>
#include <tessera/detail/blocks/block.hpp>
#include <tessera/detail/blocks/block_manager.hpp>
#include <tessera/detail/blocks/checks.hpp>
#include <tessera/detail/blocks/counters.hpp>
#include <tessera/detail/blocks/free_list.hpp>
#include <tessera/detail/containers/containers.hpp>
#include <tessera/detail/extensions/extension.hpp>
#include <tessera/detail/policies/ask_policies.hpp>
#include <tessera/recipe/recipe.hpp>

/// The algorithm of a caching allocator: it asks the policies of a recipe, and the block manager and a backend carry out the
/// answers. `serve` is a hit, `serve_miss` a miss, and `deallocate` a free. tessera/detail/extensions/extension.hpp lists
/// what it asks extensions, and tessera/detail/blocks/block_manager.hpp keeps the blocks.

namespace tessera::inline v0_1 {
template <typename Recipe, provider::device_provider Provider, typename... Extension>
class caching_allocator;
}  // namespace tessera::inline v0_1

namespace tessera::inline v0_1::detail {

/// The types that an allocator is made of.
template <typename Recipe, typename Provider, typename... Extension>
struct core_types {
  using recipe = Recipe;
  using provider = Provider;
  using allocator = caching_allocator<Recipe, Provider, Extension...>;
  using extensions = typename extensions_of<core_types, Extension...>::type;
  using group = pool_group_of<Recipe::pools::count, group_part<Extension>...>;
  using streams = typename Recipe::streams;
  using eviction = typename Recipe::eviction;
  using traits =
      manager_traits<manager_settings{Recipe::pools::count, streams::uses_events, waits_for_events<streams>,
                                      streams::reuses_across_streams,
                                      !streams::uses_events || !has_one_key<streams>,
                                      free_order_of<typename Recipe::split>, counts_reuses<eviction>},
                     typename Recipe::growth::backend, typename clock_of<eviction>::type,
                     typename call_clock_of<eviction>::type, extensions, group,
                     typename counting_of<Extension...>::template counters<Recipe::pools::count>>;
  using manager = block_manager<Provider, traits>;
  using backend = typename Recipe::growth::backend::template instance<manager>;
};

/// The bytes that a recovery policy counts as the capacity of the device.
[[nodiscard]] std::size_t usable_capacity(const auto& recovery, std::size_t capacity) noexcept {
  if constexpr (requires { recovery.usable(capacity); }) return recovery.usable(capacity);
  return capacity;
}

/// Predicts why growth would fail: by_limit or by_capacity, or none if nothing is known to prevent it.
template <typename Recipe>
[[nodiscard]] policy::failure_reason predict_failure(const auto& manager, const recipe::policies<Recipe>& p,
                                                     std::size_t segment, const usage& now) noexcept {
  const std::size_t capacity = manager.provider().capacity();
  // now.limit is the smaller one of the policy's limit and the capacity. Which one it is says what is exceeded first.
  const std::size_t limit = !now.has_limit         ? unlimited
                            : now.limit < capacity ? now.limit
                                                   : p.growth.limit.on(capacity);
  if (manager.would_exceed_limit(limit, segment)) return policy::failure_reason::by_limit;
  if constexpr (requires { Recipe::recovery::checks_capacity; }) {
    if (Recipe::recovery::checks_capacity &&
        manager.would_exceed_limit(usable_capacity(p.recovery, capacity), segment))
      return policy::failure_reason::by_capacity;
  }
  return policy::failure_reason::none;
}

}  // namespace tessera::inline v0_1::detail

namespace tessera::inline v0_1 {

/// A stream-aware caching allocator. `Recipe` decides, and `Provider` gives the memory. Each `Extension`, for example
/// extension::private_pools, adds a capability: get<Extension>() returns its calls. A recipe written by hand is checked here
/// for its form only; its laws are checked by static_assert(law::recipe<Recipe>()) [tessera/law/recipe_laws.hpp] beside the
/// recipe.
///
/// It owns its provider and cannot be moved. Its destructor releases every segment, even if blocks are live;
/// a leak_checked [tessera/debug/leak_checked.hpp] reports these. Only one thread at a time may use it; a
/// thread_checked [tessera/debug/thread_checked.hpp] checks that.
template <typename Recipe, provider::device_provider Provider, typename... Extension>
class caching_allocator {
  using core = detail::core_types<Recipe, Provider, Extension...>;
  static_assert(detail::check_recipe<Recipe>() && detail::check_provider<Recipe, Provider>());
  static_assert(detail::extension_check<core, Extension...>::passes);
  using manager = typename core::manager;
  using backend = typename core::backend;
  using extensions = typename core::extensions;

 public:
  /// The policies that decide.
  using recipe_type = Recipe;
  /// The type of the object that the memory comes from.
  using provider_type = Provider;
  /// The same allocator over another provider, or with another recipe. Front ends wrap these.
  template <typename Other>
  using rebind_provider = caching_allocator<Recipe, Other, Extension...>;
  /// The same allocator with another recipe.
  template <typename Other>
  using rebind_recipe = caching_allocator<Other, Provider, Extension...>;
  template <typename E>
  using refused = void;
  /// Whether memory is mapped into ranges of addresses, so that there are no whole segments.
  static constexpr bool has_ranges = core::traits::has_ranges;

  /// An allocator with the provider, the policies and the extensions that their default constructors make.
  [[gnu::cold]] caching_allocator()
    requires std::is_default_constructible_v<Provider>
      : caching_allocator(Provider{}) {}
  /// Each of `given` is one of the `Extension`s, for example an observer; the others are made by default.
  template <typename... Given>
    requires(detail::named_behind_the_provider<Given, Extension...> && ...)
  [[gnu::cold]] explicit caching_allocator(Provider device, tessera::recipe::policies<Recipe> policies = {},
                                           Given&&... given)
      : policies_(std::move(policies)),
        extensions_(*this, std::forward<Given>(given)...),
        manager_(std::move(device), extensions_, in_captures()) {}

  caching_allocator& operator=(caching_allocator&&) = delete;
  /// Releases all memory to the provider, that of live blocks, too.
  [[gnu::cold]] ~caching_allocator() { extensions_.on_end(); }

  /// Serves a request of `bytes` on `stream`. try_allocate() returns null where this function throws. In a program without
  /// exceptions, this function prints the message of the error instead, and aborts the program.
  ///
  ///   Returns:  an address aligned to min_alignment, valid until deallocate; null for 0 bytes
  ///   Throws:   out_of_memory if recovery fails, or if an extension refuses the request
  ///   Throws:   out_of_memory at once if `bytes` exceeds max_request
  ///   Cost:     constant on a cache hit; logarithmic among many free blocks of one size range
  ///   Cost:     a query for each completed event, and one for each stream that pending frees wait for
  ///   Cost:     provider calls on a cache miss
  [[nodiscard]] void* allocate(std::size_t bytes, stream_id stream = {}) {
    if (void* const p = try_allocate(bytes, stream); p != nullptr || bytes == 0) return p;
    raise_failure(bytes, stream);
  }
  /// Serves a request as allocate() does, and returns null where that throws.
  ///   Returns:  null for 0 bytes, and if allocate would throw
  [[nodiscard]] void* try_allocate(std::size_t bytes, stream_id stream = {}) noexcept {
    const detail::block* const served = serve<false>(bytes, stream);
    return served != nullptr ? reinterpret_cast<void*>(served->address) : nullptr;
  }
  /// Serves a request and returns a handle. A free by handle looks up no address.
  ///   Returns:  an empty handle if try_allocate would return null
  [[nodiscard]] block_handle allocate_by_handle(std::size_t bytes, stream_id stream = {}) noexcept {
    return block_handle(serve<true>(bytes, stream));
  }

  /// Frees a block. With recorded streams, the block is pending until a later call finds that their events
  /// have completed. A free may run eviction, which calls the device. Null is ignored.
  ///   Requires:  `p` is the address of a live block of this allocator; otherwise the program aborts
  void deallocate(void* p) noexcept {
    if (p != nullptr && !try_deallocate(p)) detail::refuse_address(manager_, "deallocate", p);
  }
  /// Frees a block and checks the size of its request.
  ///   Requires:  `p` as in deallocate(p); `bytes` is the requested size; otherwise the program aborts
  void deallocate(void* p, std::size_t bytes) noexcept {
    detail::block* const live = manager_.remove_live(p);
    if (live == nullptr && p == nullptr) return;
    if (live == nullptr) detail::refuse_address(manager_, "deallocate", p);
    if (live->request.bytes != bytes)
      detail::refuse_size(manager_, "deallocate", p, live->request.bytes, bytes);
    (void)evict_after_free(manager_.finish_deallocate(*live));
  }
  /// Frees a block by its handle. An empty handle is ignored.
  ///   Requires:  the handle of a live block of this allocator. Some invalid handles are not detected.
  void deallocate(block_handle h) noexcept {
    if (h && !evict_after_free(manager_.deallocate(*h.block()))) detail::refuse_handle("deallocate");
  }
  /// Frees a block.
  ///   Returns:  false if no live block begins at `p`; then nothing changes
  [[nodiscard]] bool try_deallocate(void* p) noexcept { return evict_after_free(manager_.deallocate(p)); }
  /// Frees a block on `stream`, like cudaFreeAsync: `stream` may reuse it at once. If any stream is recorded
  /// for the block, `stream` is made to wait for the others recorded and for the block's own stream.
  /// Otherwise the caller has ordered `stream` after the last use of the block.
  ///   Returns:  false if no live block begins at `p`, or if host memory ran out during a capture; then nothing changes
  [[nodiscard]] bool try_deallocate_on(void* p, stream_id stream) noexcept
    requires(Recipe::streams::reuses_across_streams)
  {
    return evict_after_free(sharing_.deallocate_on(p, stream));
  }
  /// Gives a live block to a new request without freeing it. Statistics and events count a free and an
  /// allocation.
  ///   Returns:  false, and nothing changes, if no live block begins at `p`, if streams are recorded for it,
  ///             if an extension forbids it, or if it does not fit. A block fits if the request has its pool and
  ///             its key, and the split policy lets it serve whole.
  [[nodiscard]] bool reuse_in_place(void* p, std::size_t bytes, stream_id stream) noexcept {
    detail::block* const live = bytes > 0 && bytes <= max_request ? manager_.find_live(p) : nullptr;
    if (live == nullptr || live->flags().has_recorded_streams || !extensions_.may_reuse(*live)) return false;
    const std::size_t size = policies_.rounding.block_size(bytes);
    auto& in = manager::group_of(*live->list);
    const bool fits = live->size >= size && policies_.split.may_serve(size, live->size) &&
                      (extensions_.serves_whole(in) || !detail::should_split(policies_, size, live->size)) &&
                      policies_.pools.select(size) == live->list->where.pool &&
                      &manager_.group_for(stream) == &in &&
                      stream_id(policies_.streams.reuse_key(stream)) == live->list->key;
    if (fits) manager_.reuse_in_place(*live, bytes, stream);
    return fits;
  }

  /// Records that `stream` uses a live block, so that a free waits for that use. For null and an empty
  /// handle, nothing is recorded.
  ///   Requires:  `p` as in deallocate(p)
  ///   Requires:  no extension forbids it, for example because the block has no memory; otherwise the program aborts
  ///   Returns:   true if the use is recorded, or needs no record, for example on the block's own stream.
  ///              False for null and an empty handle, for a stream that does not exist, and if host memory
  ///              ran out.
  [[nodiscard]] bool record_stream(void* p, stream_id stream) noexcept {
    detail::block* const live = manager_.find_live(p);
    if (live == nullptr && p != nullptr) detail::refuse_address(manager_, "record_stream", p);
    if (live != nullptr && !is_usable(*live))
      detail::refuse_use("record_stream", extensions_.why_unusable(*live), p);
    return record(live, stream);
  }
  [[nodiscard]] bool record_stream(block_handle h, stream_id stream) noexcept {
    if (h && !h.block()->is_by_handle()) detail::refuse_handle("record_stream");
    if (h && !is_usable(*h.block()))
      detail::refuse_use("record_stream", extensions_.why_unusable(*h.block()), h.data());
    return record(h.block(), stream);
  }
  /// Records that `stream` uses a live block. Unlike record_stream, it does not abort for an invalid address.
  ///   Returns:  as record_stream; also false if no live block begins at `p`, or if an extension
  ///             forbids it
  [[nodiscard]] bool try_record_stream(void* p, stream_id stream) noexcept {
    detail::block* const live = manager_.find_live(p);
    return live != nullptr && is_usable(*live) && record(live, stream);
  }

  /// Whether a use by stream `user` delays the reuse of a block of stream `owner`, so that record_stream records
  /// it. The streams policy decides. Front ends with memory of their own, such as planned, ask here.
  [[nodiscard]] bool delays_reuse(stream_id owner, stream_id user) const noexcept {
    return detail::delays_reuse(policies_.streams, owner, user);
  }

  /// Empties the cache: waits for pending frees, then releases idle segments until at most `keep` bytes are
  /// reserved, in live blocks and the cache. Then the eviction policy may release more. Does nothing while an extension
  /// forbids waiting for the device.
  void trim(std::size_t keep = 0) noexcept {
    if (!manager_.may_wait()) return;
    empty_cache(keep);
    if (manager_.may_wait()) evict(policy::eviction_trigger::after_free);
  }
  /// Empties the cache like trim, but without waiting. Blocks that streams still use stay pending, and idle
  /// segments stay while their stream has unfinished work. A device whose release() waits still does so.
  ///   Source:  PyTorch's empty_cache of pinned memory
  void trim_without_waiting(std::size_t keep = 0) noexcept
    requires(!core::traits::waits_for_events)
  {
    if (!manager_.may_wait()) return;
    (void)manager_.process_events();  // without eviction, which may wait
    release_idle(keep, [this](const detail::block& idle) { return manager_.is_unused(idle); });
  }
  /// Asks the eviction policy to release idle memory, for example after some time (evict_after). First frees
  /// the pending blocks whose events have completed. Private pools keep theirs.
  ///   Cost:    linear in the free blocks; more if something is released
  ///   Source:  jemalloc's arena.<i>.decay
  void evict_idle() noexcept {
    if (!manager_.may_wait()) return;
    (void)process_events();
    evict(policy::eviction_trigger::on_request);
  }
  /// Frees the pending blocks whose events have completed. Requests do this, too: each one, or with
  /// poll_events_lazily those that miss or find many pending events. With wait_for_events, it waits for all events.
  ///   Returns:  whether it freed any block
  bool process_events() noexcept {
    const bool any = manager_.process_events();
    if (any) evict(policy::eviction_trigger::after_free);
    return any;
  }
  /// Waits for all work submitted to `stream`. Then the eviction policy may release idle segments.
  ///   Returns:  false if the device failed, or while an extension forbids waiting for it
  bool synchronize(stream_id stream) noexcept
    requires(Recipe::streams::reuses_across_streams)
  {
    if (!manager_.may_wait() || !sharing_.wait_for(stream)) return false;
    (void)manager_.process_events();
    evict(policy::eviction_trigger::after_synchronize);
    return true;
  }

  /// Restarts the age of every idle segment.
  void reset_decay() noexcept {
    manager_.reset_decay();
    decay_.restart();
  }
  /// Stops the ages of idle segments, which then stay the same until resume_decay(). Meanwhile, the eviction policy must not
  /// use them. A program calls both if ages grow only under some condition; in PyTorch 2.14, that is a memory fraction
  /// below 1.
  void stop_decay() noexcept { manager_.stop_decay(); }
  /// Lets ages grow again. A segment that became idle since stop_decay() has the age 0; without a stop_decay(), all have.
  ///   Cost:  linear in the free blocks
  void resume_decay() noexcept {
    manager_.resume_decay();
    decay_.restart();
  }

  /// Registers `call(context)`, which runs before the device is asked, if no cached block fits. `call` returns whether it
  /// freed memory. It stays registered until the allocator is destroyed.
  ///   Returns:  false if host memory ran out
  [[nodiscard]] bool on_pressure(detail::callback_list::function call, void* context) noexcept {
    return pressure_.add(call, context);
  }
  /// Makes the error that allocate would throw.
  ///   Cost:  linear in the blocks
  [[nodiscard]] out_of_memory make_out_of_memory(std::size_t bytes, stream_id stream = {}) const noexcept {
    detail::oom_numbers numbers = detail::make_oom_numbers(manager_, policies_, bytes, stream);
    extensions_.explain(numbers);
    failure_.explain(numbers);
    return out_of_memory(numbers);
  }
  /// The bytes in use now, by their state.
  [[nodiscard]] usage current_usage() const noexcept { return detail::usage_of(manager_, policies_.growth); }
  /// The counters of all pools and of each.
  [[nodiscard]] auto statistics() const noexcept
    requires(manager::counters_type::keeps_statistics)
  {
    return manager_.counters().report(policies_.split.oversize_from());
  }
  /// Sets each peak to the current value.
  void reset_peak_statistics() noexcept
    requires(manager::counters_type::keeps_statistics)
  {
    manager_.counters().reset_peak();
  }
  /// Sets the sums `allocated` and `freed` and all `num_` values to zero.
  void reset_accumulated_statistics() noexcept
    requires(manager::counters_type::keeps_statistics)
  {
    manager_.counters().reset_accumulated();
  }
  /// Bytes of host memory that describe the blocks.
  [[nodiscard]] std::size_t metadata_bytes() const noexcept {
    return manager_.metadata_bytes() + backend_.metadata_bytes();
  }
  /// Checks, in a walk over all blocks, what must hold between two calls:
  ///
  ///   * neighbours touch, and free ones of a list are coalesced
  ///   * each free block is in its list once, and the list is in its order
  ///   * a live block is found by its address, and is as large as its request
  ///   * a pending block awaits an event
  ///   * statistics and groups count what the walk finds
  ///   * each extension keeps its own rules, such as that no free block has faulty bytes
  ///
  ///   Returns:  null, or the first rule that is broken
  ///   Cost:     linear in the blocks
  [[nodiscard]] const char* audit() const noexcept {
    if (const char* const broken = extensions_.audit(); broken != nullptr) return broken;
    return detail::audit(manager_, current_usage());
  }

  /// The policies; their tunable numbers may be changed at any time.
  [[nodiscard]] tessera::recipe::policies<Recipe>& policies() noexcept { return policies_; }
  /// The object that the memory comes from. The allocator owns it, and goes on to use it.
  [[nodiscard]] Provider& provider() noexcept { return manager_.provider(); }
  /// Whether streams are recorded for any block, live or pending.
  [[nodiscard]] bool has_recorded_streams() const noexcept { return manager_.has_recorded_streams(); }

  // The same calls reach the parts of a front end of one or several allocators, under its lock.

  /// Calls f(provider).
  template <typename F>
  decltype(auto) visit_provider(F f) {
    return f(provider());
  }
  /// Calls f(policies). What a growth policy noted stays, even if `f` assigns other policies.
  template <typename F>
  decltype(auto) visit_policies(F f) {
    const auto before = policies_.growth;
    const detail::at_scope_end keep([&] {
      if constexpr (requires { policies_.growth.keep_noted(policies_.eviction, before); })
        policies_.growth.keep_noted(policies_.eviction, before);
    });
    return f(policies());
  }
  /// Calls f(caching_allocator) for each caching_allocator inside. `f` must not use the front end.
  template <typename F>
  void for_each_allocator(F f) {
    f(*this);
  }
  /// Calls f(caching_allocator) for the allocator that may own an address, unless it is known to be foreign. `f`
  /// must not use the front end.
  ///   Cost:  constant
  template <typename F>
  void visit_owner(const void* /*p*/, F f) {
    f(*this);
  }
  /// Calls f(allocator, device number) with the allocator of each device.
  template <typename F>
  void for_each_device(F f) {
    f(*this, std::size_t{0});
  }
  /// Throws `error`; a front end may throw another library's type instead.
  template <typename Error>
  [[noreturn]] static void raise(const Error& error) {
    detail::raise(error);
  }

  // Extensions.

  /// What an extension offers. For example, get<extension::private_pools>().create() makes a private pool.
  template <typename E>
  [[nodiscard]] auto get() noexcept -> decltype(detail::open_door<E>(std::declval<caching_allocator&>())) {
    return detail::open_door<E>(*this);
  }
  /// Whether the allocator has an extension.
  template <typename E>
  static constexpr bool has = detail::is_one_of<E, Extension...>;
  /// Calls f(state) with the state of an extension. Doors of extensions use it in any front end. A front end of
  /// several allocators calls f in one of them, with a const state, because all have the same.
  template <typename E, typename F>
  decltype(auto) visit_extension(F f) {
    return f(extensions_.template get<E>());
  }
  template <typename E, typename F>
  decltype(auto) visit_extension(F f) const {
    return f(extensions_.template get<E>());
  }
  /// Like visit_extension, but a front end of several allocators adds up the answers of all.
  template <typename E, typename F>
  auto add_up_extension(F f) const {
    return f(extensions_.template get<E>());
  }
  /// Calls f(state), which returns an outcome or a type derived from it. A front end of several allocators calls it in each;
  /// if one fails, it calls undo(state) in those before.
  template <typename E, typename F, typename Undo = detail::ignore_arguments>
  std::derived_from<outcome> auto change_extension(F f, Undo /*undo*/ = {}) {
    return f(extensions_.template get<E>());
  }
  /// Calls f(object) for each object of the program that receives events, such as a history. f must not use the
  /// allocator. A front end holds its lock meanwhile.
  template <typename F>
  void for_each_observer(F f) {
    extensions_.visit_observers(f);
  }
  /// A door calls it after a change that worked. Front ends that record or plan requests use it.
  static constexpr void note_change(const auto& /*note*/) noexcept {}
  /// Aborts if the calling thread runs a function of the user in which it must not use the allocator, such as an observer.
  /// Front ends with a lock call it before they take that.
  void check_thread() const noexcept { extensions_.check_thread(); }
  /// Copies from another allocator to this new one what its extensions must have, such as private pools in use.
  ///   Returns:  false if host memory ran out
  [[nodiscard]] bool adopt(const caching_allocator& other) noexcept {
    return extensions_.adopt(other.extensions_);
  }

 private:
  friend struct detail::core_access;

  [[noreturn, gnu::noinline, gnu::cold]] void raise_failure(std::size_t bytes, stream_id stream) {
    raise(make_out_of_memory(bytes, stream));
  }

  /// A request, with the size, pool and key that the policies choose for it.
  struct request {
    typename manager::group* group;  // the free lists that serve it
    std::size_t bytes,               // as requested
        size,                        // of the block that serves it
        pool;                        // the pool of that block
    stream_id stream;
    [[TESSERA_NO_UNIQUE_ADDRESS]] decltype(std::declval<typename Recipe::streams>().reuse_key({})) key;
  };
  request make_request(std::size_t bytes, stream_id stream, typename manager::group& group) const noexcept {
    const std::size_t size = detail::block_size_for(policies_.rounding, bytes);
    const std::size_t pool = detail::pool_for(policies_.pools, size);
    return {&group, bytes, size, pool, stream, policies_.streams.reuse_key(stream)};
  }

  // A hit.

  template <bool ByHandle>
  [[gnu::always_inline]] detail::block* serve(std::size_t bytes, stream_id stream) noexcept {
    if (bytes == 0 || bytes > max_request) return nullptr;
    if (manager_.pending_events() > 0) poll_events();
    const request want = make_request(bytes, stream, manager_.own());
    detail::block* found = uses_fast_path() ? search(want) : nullptr;
    if (found == nullptr) {
      if constexpr (extensions::adds_groups) return serve_from_group<ByHandle>(bytes, stream);
      found = find_slowly(*want.group, bytes, want.size, want.pool, stream);
      if (found == nullptr) return nullptr;
    }
    return &allocate_from<ByHandle>(*found, want);
  }
  [[gnu::noinline]] void poll_events() noexcept {
    if (policies_.streams.should_poll_events(manager_.pending_events())) (void)process_events();
  }
  /// Finds a free block in a group, or as a miss. Not inlined, to keep the hit path small.
  [[gnu::noinline]] detail::block* find_slowly(typename manager::group& group, std::size_t bytes,
                                               std::size_t size, std::size_t pool,
                                               stream_id stream) noexcept {
    // The request is passed in registers: in memory, it would slow the hit path.
    const request want{&group, bytes, size, pool, stream, policies_.streams.reuse_key(stream)};
    detail::block* const found = uses_fast_path() ? nullptr : obtain(want);
    return found != nullptr ? found : serve_miss(want);
  }
  /// Whether the allocator's own group serves every hit.
  [[nodiscard]] bool uses_fast_path() const noexcept {
    return extensions::is_empty || extensions_.uses_fast_path();
  }
  [[nodiscard]] bool may_serve(const request& want) const noexcept {
    return extensions::is_empty || extensions_.may_serve(*want.group);
  }
  /// Serves a request in the group that extensions choose once, although a scope may open or close during a miss.
  template <bool ByHandle>
  [[gnu::noinline]] detail::block* serve_from_group(std::size_t bytes, stream_id stream) noexcept {
    request want = make_request(bytes, stream, manager_.group_for(stream));
    detail::block* const found = find_slowly(*want.group, bytes, want.size, want.pool, stream);
    if (found == nullptr) return nullptr;
    if (extensions_.serves_whole(manager::group_of(*found->list))) want.size = found->size;
    detail::block& served = allocate_from<ByHandle>(*found, want);
    extensions_.on_served(served, *want.group);
    return &served;
  }
  /// Searches the free list of a request.
  [[gnu::always_inline]] detail::block* search(const request& want) noexcept {
    detail::free_list* const list = manager_.prepare_list(*want.group, want.pool, want.key);
    if (list == nullptr) return nullptr;
    detail::block* const found = backend_.obtain_block(*list, want.size, policies_);
    return found != nullptr && policies_.split.may_serve(want.size, found->size) ? found : nullptr;
  }
  /// Searches the free list of a request, if its group serves requests.
  detail::block* obtain(const request& want) noexcept {
    return may_serve(want) ? admit(search(want), want) : nullptr;
  }
  /// Returns a free block if extensions let the request use it, otherwise null.
  detail::block* admit(detail::block* found, const request& want) noexcept {
    if constexpr (extensions::limits_groups) {
      if (found == nullptr) return nullptr;
      const std::size_t size = extensions_.serves_whole(*want.group) ? found->size : want.size;
      const placement at = place(*found, size, backend_.peek_placement(*found, size, policies_));
      return extensions_.may_use(*found, at.offset, at.size) ? found : nullptr;
    } else {
      return found;
    }
  }
  struct placement {
    std::size_t offset, size;
  };
  /// The part of a free block that serves a block size, after `gap` bytes that stay free.
  [[gnu::always_inline]] placement place(const detail::block& found, std::size_t wanted,
                                         std::size_t gap) const noexcept {
    const std::size_t room = found.size - gap;
    const std::size_t size = detail::should_split(policies_, wanted, room) ? wanted : room;
    return {policies_.split.allocated_end() == policy::block_end::low ? gap : found.size - size, size};
  }
  template <bool ByHandle>
  [[gnu::always_inline]] detail::block& allocate_from(detail::block& found, const request& want) noexcept {
    const std::size_t gap = backend_.consume_placement(found, want.size, policies_);
    const placement at = place(found, want.size, gap);
    const bool oversize = at.size >= policies_.split.oversize_from();
    if constexpr (detail::hears_requests<typename Recipe::split>) {
      served_request now{want.bytes, {want.size, want.pool, found.list->key}, manager::view_of(found)};
      detail::block& served =
          manager_.template allocate<ByHandle>(found, want.bytes, at.size, at.offset, oversize, want.stream);
      now.address = served.address;
      now.size = served.size;
      policies_.split.note_served(now);
      return served;
    }
    return manager_.template allocate<ByHandle>(found, want.bytes, at.size, at.offset, oversize, want.stream);
  }
  /// Runs eviction if a block became free.
  ///   Returns:  whether there was a live block
  bool evict_after_free(detail::free_result result) noexcept {
    if (result == detail::free_result::free) evict(policy::eviction_trigger::after_free);
    return result != detail::free_result::unknown;
  }
  [[nodiscard]] bool is_usable(const detail::block& live) const noexcept {
    return extensions_.why_unusable(live) == nullptr;
  }
  bool record(detail::block* live, stream_id stream) noexcept {
    return live != nullptr &&
           (!policies_.streams.needs_event(live->list->key, stream) || manager_.record_stream(*live, stream));
  }

  // A miss.

  /// The state of a miss, which extensions get in attempt() and adjust().
  struct miss_state {
    const request want;
    policy::failure_reason why{};    // why the last attempt to grow failed
    policy::recovery_steps steps{};  // what recovery tries; empty before it begins
    bool exactly = false;            // whether each growth asks for exactly the block's size
    bool rejected = false;           // whether the recovery policy failed an attempt to grow at once
  };

  /// Makes these attempts in order. The first that finds a free block serves the request. PyTorch's names for them:
  ///
  /// | here | in CUDACachingAllocator.cpp |
  /// |---|---|
  /// | search | get_free_block |
  /// | relieve_pressure | trigger_free_memory_callbacks |
  /// | evict | garbage_collect_cached_blocks |
  /// | reuse_or_grow | alloc_block |
  /// | release_oversize_of | release_available_cached_blocks |
  /// | take_step(release_cached) | release_cached_blocks |
  /// | the attempts of private_pools | try_mempool_fallback |
  [[nodiscard, gnu::noinline, gnu::cold]] detail::block* serve_miss(const request& want) noexcept {
    const detail::group_visit in(*want.group);
    failure_.begin(manager_);
    miss_state now{.want = want};
    if (!may_serve(want)) return fail(now);
    // The user's callbacks may have freed a block, or events may have completed meanwhile.
    if (detail::block* const found = relieve_pressure() ? obtain(want) : nullptr) return found;
    // Old idle segments go back first, then other streams serve, then the device.
    const usage current = current_usage();
    const bool may_differ = evict(policy::eviction_trigger::before_growth, current);
    if (detail::block* const found = reuse_or_grow(now, may_differ ? current_usage() : current)) return found;
    if (detail::block* const found = extensions_.attempt(detail::miss_stage::growth_failed, now))
      return found;
    choose_steps(now);
    if (detail::block* const found = extensions_.attempt(detail::miss_stage::before_steps, now)) return found;
    if (detail::block* const found = recover(now)) return found;
    if (detail::block* const found = extensions_.attempt(detail::miss_stage::last, now)) return found;
    return fail(now);
  }
  detail::block* recover(miss_state& now) noexcept {
    for (const policy::recovery_steps::step step : policy::recovery_steps(now.steps)) {
      if (step == policy::recovery_steps::step::search_again) {
        if (detail::block* const found = search_again(now.want)) return found;
        continue;
      }
      if (!take_step(step, now.want)) continue;
      const bool exactly = step == policy::recovery_steps::step::retry_exact_size;
      if (detail::block* const found = reuse_or_grow(now, current_usage(), exactly)) return found;
    }
    return nullptr;
  }
  detail::block* fail(const miss_state& now) noexcept {
    const request& want = now.want;
    if (!may_serve(want)) {
      manager_.report(manager::action::refused, 0, want.bytes, want.size, want.stream, *want.group);
      return nullptr;
    }
    failure_.end(manager_, want.bytes, want.stream, detail::segment_size_for(manager_, policies_, want.size),
                 now.why == policy::failure_reason::by_extension);
    manager_.report_oom(want.bytes, want.size, want.stream, *want.group,
                        now.steps.count == 0 || now.rejected);
    return nullptr;
  }
  /// Asks the recovery policy, then the extensions. The policy hears of a refusal by an extension as of a limit. No step
  /// gives host memory.
  void choose_steps(miss_state& now) const noexcept {
    using enum policy::failure_reason;
    if (now.why != none && now.why != by_host_memory)
      now.steps = policies_.recovery.steps(now.why == by_extension ? by_limit : now.why);
    extensions_.adjust(now);
  }
  /// If waiting is allowed, waits for pending frees. Then searches the free list again.
  [[gnu::cold]] detail::block* search_again(const request& want) noexcept {
    if (manager_.may_wait()) {
      manager_.wait_for_pending_of([](const auto&) { return true; });
      sharing_.wait_for_unfinished_work();
      sharing_.coalesce_idle();
    }
    return obtain(want);
  }
  /// Calls the user's callbacks. If the request did not poll events first, also frees completed pending
  /// blocks.
  ///   Returns:  whether memory was freed
  bool relieve_pressure() noexcept {
    const bool polls_here = !policies_.streams.should_poll_events(manager_.pending_events());
    const bool freed = pressure_.run();
    return (polls_here && process_events()) || freed;
  }
  /// Gets memory from other streams, if the recipe allows it, or from the device. `current` is the usage before that.
  [[gnu::cold]] detail::block* reuse_or_grow(miss_state& now, const usage& current,
                                             bool exactly = false) noexcept {
    const request& want = now.want;
    if (!may_serve(want)) return nullptr;  // another thread may have forbidden it meanwhile
    if constexpr (Recipe::streams::reuses_across_streams) {
      detail::free_list* const list = prepare_list(now);
      if (list == nullptr) return nullptr;
      if (auto* const found = admit(sharing_.take_from_other_streams(*list, want.size, policies_), want))
        return found;
    }
    return grow(now, current, exactly || now.exactly);
  }
  /// Prepares the free list of a request. Sets `why` if host memory ran out.
  detail::free_list* prepare_list(miss_state& now) noexcept {
    detail::free_list* const list = manager_.prepare_list(*now.want.group, now.want.pool, now.want.key);
    if (list == nullptr) now.why = policy::failure_reason::by_host_memory;
    return list;
  }
  /// Asks the device for memory. Sets `why` if it fails.
  detail::block* grow(miss_state& now, const usage& current, bool exactly) noexcept {
    using enum policy::failure_reason;
    const request& want = now.want;
    if constexpr (requires { policies_.growth.note_growth(policies_.eviction, current, want.size); })
      policies_.growth.note_growth(policies_.eviction, current,
                                   detail::left_on(provider(), current.reserved));
    const std::size_t segment = detail::segment_size_for(manager_, policies_, current, want.size, exactly);
    const bool may_start = extensions::is_empty || extensions_.may_start_growth(*want.group, segment);
    now.why = may_start ? detail::predict_failure(manager_, policies_, segment, current) : by_extension;
    if (is_growth_pointless(now.why)) {
      now.rejected = now.rejected || now.why == by_capacity;
      return nullptr;
    }
    detail::free_list* const list = prepare_list(now);
    if (list == nullptr) return nullptr;
    detail::block* const found = backend_.grow(*list, want.size, segment, policies_);
    if (found != nullptr) return admit_new(*found, now);
    if (extensions_.has_refused()) now.why = by_extension;
    if (now.why == none) now.why = by_device;
    return nullptr;
  }
  /// Gives new memory back if extensions do not let the request use it.
  [[gnu::cold]] detail::block* admit_new(detail::block& found, miss_state& now) noexcept {
    if (admit(&found, now.want) != nullptr) return &found;
    now.why = policy::failure_reason::by_extension;
    if (manager_.may_wait() && backend_.releasable(found) > 0) (void)backend_.release(found);
    return nullptr;
  }
  /// Whether a predicted failure makes growth pointless. A backend that moves memory may succeed even at the limit. A
  /// capacity is only a guess of what the device has, so only a recipe that then fails fast trusts it.
  [[nodiscard]] bool is_growth_pointless(policy::failure_reason why) const noexcept {
    if (why == policy::failure_reason::by_extension) return true;
    if (why == policy::failure_reason::by_limit) return !Recipe::growth::backend::moves_memory;
    return why == policy::failure_reason::by_capacity && policies_.recovery.steps(why).count == 0;
  }
  /// Takes a recovery step.
  ///   Returns:  whether another try may succeed
  bool take_step(policy::recovery_steps::step step, const request& want) noexcept {
    using enum policy::recovery_steps::step;
    switch (step) {
      case release_oversize: return release_oversize_of(want);
      case release_one: {
        const std::size_t before = manager_.reserved_after_releases();
        release_idle(before - 1, at_least{detail::segment_size_for(manager_, policies_, want.size)});
        return manager_.reserved_after_releases() < before;
      }
      case release_cached:
        if (!manager_.may_wait()) return false;
        empty_cache(0);
        if constexpr (detail::reclaiming_provider<Provider>)
          void(manager_.may_wait() && provider().reclaim());
        ++manager_.counters().num_alloc_retries;
        if (manager_.may_wait()) evict(policy::eviction_trigger::after_free);
        return true;
      default: return true;  // recover() does retry_exact_size and search_again
    }
  }

  // Releasing memory to the device. A capture forbids it, except here if in_captures() is true.

  [[nodiscard]] bool in_captures() const noexcept {
    return policies_.recovery.steps(policy::failure_reason::by_device).in_captures;
  }
  /// Releases free oversize blocks of the request's list until its block's size went back.
  ///   Returns:  whether that many bytes went back
  [[gnu::cold]] bool release_oversize_of(const request& want) noexcept {
    using order = typename manager::order;
    const std::size_t oversize = policies_.split.oversize_from();
    if (oversize > unlimited / 2 || (!in_captures() && !manager_.may_wait())) return false;
    detail::free_list* const list = manager_.find_or_create_list(*want.group, want.pool, want.key);
    const auto release = [this](detail::block& b) { return backend_.release(b); };
    return list != nullptr &&
           detail::release_largest<order, manager::traits::has_ranges>(*list, want.size, oversize, release);
  }
  struct at_least {
    std::size_t bytes;
    bool operator()(const detail::block& b) const noexcept { return b.size >= bytes; }
  };
  /// Releases the idle segments for which may_release(block) is true, until at most `keep` bytes are reserved.
  template <typename F>
  [[gnu::cold]] void release_idle(std::size_t keep, F may_release) noexcept {
    if (manager_.reserved_after_releases() <= keep) return;
    sharing_.coalesce_idle();
    manager_.for_each_releasable([&](detail::block& idle) {
      if (!manager_.may_wait() || manager_.reserved_after_releases() <= keep) return false;
      if (backend_.releasable(idle) == 0 || !may_release(idle)) return false;
      (void)backend_.release(idle);
      return true;
    });
  }
  [[gnu::cold]] void empty_cache(std::size_t keep) noexcept {
    manager_.wait_for_pending_of([](const auto&) { return true; });
    sharing_.wait_for_unfinished_work();
    release_idle(keep, at_least{0});
    if (manager_.may_wait()) shrink();
  }
  void shrink() noexcept {
    extensions_.on_trim();
    backend_.shrink();
  }
  [[gnu::always_inline]] void evict(policy::eviction_trigger when) noexcept {
    (void)evict(when, current_usage());
  }
  /// Returns whether it tried to evict.
  bool evict(policy::eviction_trigger when, const usage& current) noexcept {
    const std::size_t wanted = policies_.eviction.bytes_to_evict(when, current);
    if (wanted > 0 && (manager_.may_wait() || in_captures())) evict_bytes(when, current, wanted);
    return wanted > 0;
  }
  /// Evicts idle segments in passes, as the policy decides. Stops once `wanted` bytes went back or a pass
  /// released nothing.
  [[gnu::cold]] void evict_bytes(policy::eviction_trigger when, const usage& now,
                                 std::size_t wanted) noexcept {
    const auto& policy = policies_.eviction;
    const std::size_t min_size = detail::min_candidate_size(policy, now);
    for (std::size_t freed = 0, before = unlimited; freed < wanted && freed != before;) {
      before = freed;
      sharing_.coalesce_idle();
      auto time = manager_.now();
      policy::idle_segment totals{.trigger = when};
      const auto describe = [&](const detail::block& b) {
        policy::idle_segment idle{backend_.releasable(b), manager_.age(b, time)};
        idle.trigger = when;
        manager_.describe(b, idle);
        if constexpr (detail::ranks_segments<typename Recipe::eviction>) idle.value = policy.value(idle);
        return idle;
      };
      manager_.for_each_idle(
          [&](const detail::block& b) {
            const policy::idle_segment idle = describe(b);
            if (!policy.is_candidate(idle.bytes, now)) return false;
            if (totals.candidates == 0 || idle.value < totals.min_value) totals.min_value = idle.value;
            ++totals.candidates;
            totals.total_age += idle.age;
            if (idle.age > totals.max_age) totals.max_age = idle.age;
            totals.excess += decay_.excess_of(policy, idle.bytes, idle.age);
            return false;
          },
          min_size);
      const std::size_t allowance = decay_.kept_of_evicted(policy, time);
      totals.excess -= allowance < totals.excess ? allowance : totals.excess;
      manager_.for_each_idle(
          [&](detail::block& b) {
            policy::idle_segment idle = describe(b);
            idle.set_totals(totals);
            idle.remaining = wanted > freed ? wanted - freed : 0;
            if (!policy.is_candidate(idle.bytes, now) || !policy.should_evict(idle)) return false;
            const std::size_t released = backend_.release(b);
            decay_.note_eviction(released, time, idle.age);
            time = manager_.now();  // blocks may have become idle during the release
            totals.excess -= released < totals.excess ? released : totals.excess;
            freed += released;
            return true;
          },
          min_size);
    }
  }

  tessera::recipe::policies<Recipe> policies_;
  // Before the manager, which uses its groups until the end.
  [[TESSERA_NO_UNIQUE_ADDRESS]] extensions extensions_;
  manager manager_;
  [[TESSERA_NO_UNIQUE_ADDRESS]] detail::sharing_of<typename Recipe::streams, manager> sharing_{manager_};
  // Destroyed before the manager: the backend's destructor releases memory through it.
  backend backend_{manager_};
  detail::callback_list pressure_;
  [[TESSERA_NO_UNIQUE_ADDRESS]] detail::latest_failure<Provider, !extensions::is_empty> failure_;
  [[TESSERA_NO_UNIQUE_ADDRESS]] detail::decay_of<typename Recipe::eviction> decay_;
};

}  // namespace tessera::inline v0_1
