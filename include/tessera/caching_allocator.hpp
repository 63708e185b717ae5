// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <type_traits>
#include <utility>

#include <tessera/core/allocator_event.hpp>
#include <tessera/core/bytes.hpp>
#include <tessera/core/error.hpp>
#include <tessera/core/pool_checkpoint.hpp>
#include <tessera/core/pool_traits.hpp>
#include <tessera/core/private_pool.hpp>
#include <tessera/core/statistics.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/core/text.hpp>
#include <tessera/detail/ask_policies.hpp>
#include <tessera/detail/audit.hpp>
#include <tessera/detail/block.hpp>
#include <tessera/detail/block_manager.hpp>
#include <tessera/detail/callbacks.hpp>
#include <tessera/detail/caller_mistake.hpp>
#include <tessera/detail/common_calls.hpp>
#include <tessera/detail/counters.hpp>
#include <tessera/detail/decay.hpp>
#include <tessera/detail/free_list.hpp>
#include <tessera/detail/handle.hpp>
#include <tessera/detail/introspection.hpp>
#include <tessera/detail/pool_checkpoint.hpp>
#include <tessera/detail/pool_shares.hpp>
#include <tessera/detail/sleeping_memory.hpp>
#include <tessera/detail/stream_sharing.hpp>
#include <tessera/fwd.hpp>
#include <tessera/law/recipe.hpp>
#include <tessera/provider/provider.hpp>
#include <tessera/recipe/check_provider.hpp>
#include <tessera/recipe/recipe.hpp>

namespace tessera {
namespace detail {

/// Compile-time settings of the block manager for a recipe.
template <typename Recipe>
struct recipe_traits : manager_traits {
  using backend = typename Recipe::growth::backend;
  static constexpr std::size_t pools = Recipe::pools::count;
  static constexpr bool uses_events = Recipe::streams::uses_events;
  static constexpr bool reuses_across_streams = Recipe::streams::reuses_across_streams;
  static constexpr bool has_stream_order = !uses_events || !has_one_key<typename Recipe::streams>;
  static constexpr bool has_ranges = backend::has_ranges;
  static constexpr bool places_blocks = backend::places_blocks;
  static constexpr bool has_shares = admits_pools<typename Recipe::growth>;
  static constexpr free_order order = free_order_of<typename Recipe::split>;
  using clock = typename clock_of<typename Recipe::eviction>::type;
};

/// Collects the numbers of a request that fails now.
///   Cost:  linear in the blocks
template <typename Recipe, typename Introspection>
[[nodiscard, gnu::noinline, gnu::cold]] oom_numbers make_oom_numbers(const Introspection& blocks,
                                                                     const policies<Recipe>& p,
                                                                     std::size_t bytes,
                                                                     stream_id stream) noexcept {
  oom_numbers numbers{.requested = bytes, .segment = bytes, .stream = stream};
  numbers.is_asleep = blocks.is_asleep(stream);
  numbers.now = usage_of(blocks, p.growth);
  numbers.capacity = blocks.provider().capacity();
  numbers.available = left_on(blocks.provider(), numbers.now.reserved);
  blocks.for_each_block([&numbers](const block& b) {
    if (b.is_free() && b.size > numbers.largest_free) numbers.largest_free = b.size;
  });
  if (bytes > max_request) return numbers;
  numbers.block = p.rounding.block_size(bytes);
  numbers.segment = segment_size_for(blocks, p, numbers.block);
  return numbers;
}

/// Returns the reason for which growth cannot succeed: by_limit or by_capacity. Returns by_device if neither
/// applies: growth may succeed, and if it fails, the device refused.
template <typename Recipe, typename Manager>
[[nodiscard]] failure_reason predict_failure(const Manager& manager, const policies<Recipe>& p,
                                             std::size_t segment) noexcept {
  const std::size_t capacity = manager.provider().capacity();
  if (manager.would_exceed_limit(p.growth.limit.on(capacity), segment)) return failure_reason::by_limit;
  if constexpr (requires { Recipe::recovery::checks_capacity; }) {
    if (Recipe::recovery::checks_capacity && manager.would_exceed_limit(capacity, segment))
      return failure_reason::by_capacity;
  }
  return failure_reason::by_device;
}

/// Keeps why the provider refused memory for the latest request that failed. Without reasons, it is empty.
template <typename Provider>
class latest_failure {
 public:
  static void begin(Provider&) noexcept {}
  static void end(Provider&, std::size_t, stream_id, std::size_t) noexcept {}
  [[nodiscard]] static refusal of(std::size_t, stream_id) noexcept { return {}; }
};
template <typename Provider>
  requires(explaining_provider<Provider> || limit_explaining_provider<Provider>)
class latest_failure<Provider> {
 public:
  /// Forgets what the provider refused before this request.
  void begin(Provider& from) noexcept {
    (void)take_refusal(from);
    why_ = {};
  }
  /// Keeps what the provider refused since, or how `segment` bytes exceed its limit.
  void end(Provider& from, std::size_t bytes, stream_id stream, std::size_t segment) noexcept {
    bytes_ = bytes;
    stream_ = stream;
    why_ = take_refusal(from);
    if (!why_) why_ = explain_limit(from, segment);
  }
  /// The reason if this was the latest request that failed.
  [[nodiscard]] refusal of(std::size_t bytes, stream_id stream) const noexcept {
    return bytes == bytes_ && stream == stream_ ? why_ : refusal();
  }

 private:
  std::size_t bytes_ = 0;
  stream_id stream_{};
  refusal why_{};
};

/// Replaces a part of an allocator that its recipe does not need.
template <typename Part>
struct unneeded {
  unneeded(const auto& /*manager*/, const auto& /*backend*/) noexcept {}
};

/// Finds the smallest candidate size of an eviction policy by bisection. Every larger size is a candidate,
/// too.
[[nodiscard]] constexpr std::size_t min_candidate_size(const eviction_policy auto& policy,
                                                       const usage& now) noexcept {
  std::size_t min = min_alignment;
  if (policy.is_candidate(min, now)) return min;
  for (std::size_t step = std::size_t{1} << 60; step >= min_alignment; step /= 2) {
    if (!policy.is_candidate(min + step - min_alignment, now)) min += step;
  }
  return min;
}

}  // namespace detail

/// A stream-aware caching allocator. `Recipe` decides, `Provider` gives the memory, `Observer` receives the
/// events, and `Counting` counts.
///
/// It owns its provider and cannot be moved. Its destructor releases every segment, even if blocks are live;
/// a leak_checked [tessera/debug/leak_checked.hpp] reports these. Only one thread at a time may use it; a
/// thread_checked [tessera/debug/thread_checked.hpp] checks that.
template <typename Recipe, device_provider Provider, allocator_observer Observer, typename Counting>
class caching_allocator
    : public detail::common_calls<caching_allocator<Recipe, Provider, Observer, Counting>> {
  using calls = detail::common_calls<caching_allocator>;
  using no_sleep = detail::missing::sleep_needs_a_recipe_that_maps_memory_into_ranges_such_as_stitched;
  static_assert(detail::check_policies<Recipe>() && detail::check_provider<Recipe, Provider>());
  using manager = detail::block_manager<Provider, Observer, Counting, detail::recipe_traits<Recipe>>;
  using backend = typename Recipe::growth::backend::template instance<manager>;

 public:
  [[gnu::cold]] caching_allocator() : caching_allocator(Provider{}) {}
  [[gnu::cold]] explicit caching_allocator(Provider device, tessera::policies<Recipe> policies = {},
                                           Observer observer = {})
      : policies_(std::move(policies)), manager_(std::move(device), std::move(observer)) {}

  // common_calls adds allocate and the calls that take an alignment.
  using calls::try_allocate, calls::deallocate, calls::record_stream;
  /// Serves a request of `bytes` on `stream`.
  ///   Returns:  null for 0 bytes, and if allocate would throw
  [[nodiscard]] void* try_allocate(std::size_t bytes, stream_id stream = {}) noexcept {
    const detail::block* const served = serve<false>(bytes, stream);
    return served != nullptr ? reinterpret_cast<void*>(served->address) : nullptr;
  }
  /// Serves a request and returns a handle. A free by handle looks nothing up.
  ///   Returns:  an empty handle if try_allocate would return null
  [[nodiscard]] handle allocate_by_handle(std::size_t bytes, stream_id stream = {}) noexcept {
    return handle(serve<true>(bytes, stream));
  }

  /// Frees a block. With recorded streams, the block is pending until a later call finds that their events
  /// have completed. A free may run eviction, which calls the device. Null is ignored.
  ///   Requires:  `p` is the address of a live block of this allocator; otherwise the program aborts
  void deallocate(void* p) noexcept {
    if (p != nullptr && !try_deallocate(p)) detail::refuse_address(introspect(), "deallocate", p);
  }
  /// Frees a block and checks the size of its request.
  ///   Requires:  `p` as in deallocate(p); `bytes` is the requested size; otherwise the program aborts
  void deallocate(void* p, std::size_t bytes) noexcept {
    detail::block* const live = manager_.remove_live(p);
    if (live == nullptr && p == nullptr) return;
    if (live == nullptr) detail::refuse_address(introspect(), "deallocate", p);
    if (live->request.bytes != bytes)
      detail::refuse_size(introspect(), "deallocate", p, live->request.bytes, bytes);
    (void)evict_after_free(manager_.finish_deallocate(*live));
  }
  /// Frees a block by its handle. An empty handle is ignored.
  ///   Requires:  the handle of a live block of this allocator. Some invalid handles are not detected.
  void deallocate(handle h) noexcept {
    if (h && !evict_after_free(manager_.deallocate(*h.block()))) detail::refuse_handle("deallocate");
  }
  /// Frees a block.
  ///   Returns:  false if no live block begins at `p`; then nothing changes
  [[nodiscard]] bool try_deallocate(void* p) noexcept { return evict_after_free(manager_.deallocate(p)); }
  /// Frees a block on `stream`, like cudaFreeAsync: `stream` may reuse it at once. If any stream is recorded
  /// for the block, `stream` is made to wait for the others recorded and for the block's own stream.
  /// Otherwise the caller has ordered `stream` after the last use of the block.
  ///   Returns:  false if no live block begins at `p`; then nothing changes
  [[nodiscard]] bool try_deallocate_on(void* p, stream_id stream) noexcept
    requires(Recipe::streams::reuses_across_streams)
  {
    return evict_after_free(sharing_.deallocate_on(p, stream));
  }
  /// Gives a live block to a new request without freeing it. Statistics and events count a free and an
  /// allocation.
  ///   Returns:  false, and nothing changes, if no live block begins at `p`, if streams are recorded for it,
  ///             if `serves_on_oom` lent it to the default pools, or if it does not fit. A block fits if the
  ///             request has its pool, default or private, and its key, and the split policy lets it serve
  ///             whole.
  [[nodiscard]] bool reuse_in_place(void* p, std::size_t bytes, stream_id stream) noexcept {
    detail::block* const live = bytes > 0 && bytes <= max_request ? manager_.find_live(p) : nullptr;
    if (live == nullptr || live->flags().has_recorded_streams || live->is_lent() || sleeps(*live))
      return false;
    const std::size_t size = policies_.rounding.block_size(bytes);
    const bool fits = live->size >= size && policies_.split.may_serve(size, live->size) &&
                      (live->list->where().group->options.never_splits ||
                       !detail::should_split(policies_, size, live->size)) &&
                      policies_.pools.select(size) == live->list->pool() &&
                      &manager_.pools().destination(stream) == live->list->where().group &&
                      stream_id(policies_.streams.reuse_key(stream)) == live->list->key();
    if (fits) manager_.reuse_in_place(*live, bytes, stream);
    return fits;
  }

  /// Records that `stream` uses a live block, so that a free waits for that use. For null and an empty
  /// handle, nothing is recorded.
  ///   Requires:  `p` as in deallocate(p)
  ///   Requires:  the pool of the block does not sleep; otherwise the program aborts
  ///   Returns:   true if the use is recorded, or needs no record, for example on the block's own stream.
  ///              False for null and an empty handle, for a stream that does not exist, and if host memory
  ///              ran out.
  [[nodiscard]] bool record_stream(void* p, stream_id stream) noexcept {
    detail::block* const live = manager_.find_live(p);
    if (live == nullptr && p != nullptr) detail::refuse_address(introspect(), "record_stream", p);
    if (live != nullptr && sleeps(*live)) detail::refuse_sleeping("record_stream", p);
    return record(live, stream);
  }
  [[nodiscard]] bool record_stream(handle h, stream_id stream) noexcept {
    if (h && !h.block()->is_by_handle()) detail::refuse_handle("record_stream");
    if (h && sleeps(*h.block())) detail::refuse_sleeping("record_stream", h.data());
    return record(h.block(), stream);
  }
  /// Records that `stream` uses a live block. Unlike record_stream, it does not abort for an invalid address.
  ///   Returns:  as record_stream; also false if no live block begins at `p`, or if its pool sleeps
  [[nodiscard]] bool try_record_stream(void* p, stream_id stream) noexcept {
    detail::block* const live = manager_.find_live(p);
    return live != nullptr && !sleeps(*live) && record(live, stream);
  }

  /// Whether a use by stream `user` delays the reuse of a block of stream `owner`, so that record_stream records
  /// it. The streams policy decides. A front end with memory of its own asks here.
  [[nodiscard]] bool delays_reuse(stream_id owner, stream_id user) const noexcept {
    return detail::delays_reuse(policies_.streams, owner, user);
  }

  /// Empties the cache: waits for pending frees, then releases idle segments until at most `keep` bytes are
  /// reserved. Then the eviction policy may release more. Private pools in use keep their memory, unless
  /// they have a share. Does nothing during a capture.
  void trim(std::size_t keep = 0) noexcept {
    if (manager_.pools().any_capture()) return;
    empty_cache(keep);
    evict(eviction_trigger::after_free);
  }
  /// Empties the cache like trim, but without waiting. Blocks that streams still use stay pending, and idle
  /// segments stay while their stream has unfinished work. A device whose release() waits still does so.
  ///   Source:  PyTorch's empty_cache of pinned memory
  void trim_without_waiting(std::size_t keep = 0) noexcept {
    if (manager_.pools().any_capture()) return;
    (void)manager_.process_events();  // without eviction, which may wait
    release_idle(keep, [this](const detail::block& idle) { return manager_.is_unused(idle); });
  }
  /// Asks the eviction policy to release idle memory, for example after some time (evict_after). First frees
  /// the pending blocks whose events have completed. Private pools keep their memory, even those with a
  /// share. Does nothing during a capture.
  ///   Cost:    linear in the free blocks; more if something is released
  ///   Source:  jemalloc's arena.<i>.decay
  void evict_idle() noexcept {
    if (manager_.pools().any_capture()) return;
    (void)process_events();
    evict(eviction_trigger::on_request);
  }
  /// Frees the pending blocks whose events have completed. Requests do this, too: each one, or with
  /// poll_events_lazily those that miss or find many pending events.
  ///   Returns:  whether it freed any block
  bool process_events() noexcept {
    const bool any = manager_.process_events();
    if (any) evict(eviction_trigger::after_free);
    return any;
  }
  /// Waits for all work submitted to `stream`. Then the eviction policy may release idle segments.
  ///   Returns:  false if the device failed
  bool synchronize(stream_id stream) noexcept
    requires(Recipe::streams::reuses_across_streams)
  {
    if (!sharing_.wait_for(stream)) return false;
    (void)manager_.process_events();
    evict(eviction_trigger::after_synchronize);
    return true;
  }

  // Private pools. private_pool [tessera/private_pool.hpp] calls these functions.

  /// Creates a private pool with one use. Its blocks serve only requests directed to it, unless its options say
  /// more. `name` is the pool of another allocator, whose name it shares; by default, it gets a new name.
  ///   Requires:  no pool here has that name
  ///   Returns:   no pool if host memory ran out
  ///   Source:    the private pools of PyTorch 2.6
  [[nodiscard]] pool_id create_pool(pool_options options = {}, pool_id name = {}) noexcept {
    return make_pool(options, {}, name);
  }
  /// Creates a private pool that takes its segments from a source, with the sizes that growth chooses. Their
  /// bytes count as reserved, and under the limit. Recipes that map memory into ranges have no segments.
  ///   Requires:  the object of the source outlives the allocator
  [[nodiscard]] pool_id create_pool(const memory_source& from, pool_options options = {},
                                    pool_id name = {}) noexcept
    requires(!detail::recipe_traits<Recipe>::has_ranges)
  {
    return make_pool(options, from, name);
  }
  detail::missing::memory_sources_need_a_recipe_that_acquires_segments create_pool(const memory_source& from,
                                                                                   pool_options options = {},
                                                                                   pool_id name = {}) noexcept
    requires(detail::recipe_traits<Recipe>::has_ranges);
  /// Creates the private pools that another allocator uses, under their names, and opens their scopes.
  ///   Requires:  there are no private pools here
  ///   Returns:   false if host memory ran out
  [[nodiscard]] bool copy_used_pools(const caching_allocator& other) noexcept {
    return manager_.pools().copy_used(other.manager_.pools());
  }
  /// Adds a use to a private pool.
  ///   Returns:  false if the pool does not exist or has no use
  [[nodiscard]] bool retain_pool(pool_id pool) noexcept {
    auto* const found = manager_.pools().find(pool);
    return found != nullptr && found->uses > 0 && ++found->uses > 0;
  }
  /// Removes a use from a private pool. Without uses, the next trim or recovery releases its idle memory. The
  /// pool ceases to exist when it owns no memory.
  ///   Returns:  false, and changes nothing, if the pool does not exist or has no use, or if this is the last
  ///             use while its scope is open
  [[nodiscard]] bool release_pool(pool_id pool) noexcept {
    auto* const found = manager_.pools().find(pool);
    if (found == nullptr || found->uses == 0 || (found->uses == 1 && found->is_open)) return false;
    --found->uses;
    if constexpr (has_shares) {
      if (found->uses == 0) manager_.pools().set_share(*found, {});
      shares_.count();  // without uses, it does not hold its idle memory
    }
    return true;
  }
  /// The uses of a private pool.
  ///   Returns:  0 if it has none or does not exist
  [[nodiscard]] std::size_t uses_of_pool(pool_id pool) const noexcept {
    const auto* const found = manager_.pools().find(pool);
    return found != nullptr ? found->uses : 0;
  }
  /// Whether a private pool exists. A pool without uses exists until it owns no memory.
  [[nodiscard]] bool has_pool(pool_id pool) const noexcept { return manager_.pools().find(pool) != nullptr; }
  /// Opens a scope: directs the requests of the streams that `streams` selects to a private pool. If several
  /// scopes select a stream, the oldest decides.
  ///
  /// During a capture, that is, while any scope of the kind capture is open, requests ask the device for no
  /// events and wait for none. Recovery does not empty the cache. A block with recorded streams that is freed
  /// meanwhile stays pending until no such scope is open. Uses that were recorded in between are then dropped:
  /// the caller has joined their streams.
  ///   Returns:  false if the pool does not exist, has no use, or sleeps, or if its scope is open
  ///   Cost:     a later request is logarithmic in the open scopes; it also calls the functions of older scopes
  [[nodiscard]] bool begin_allocate_to_pool(pool_id pool, stream_filter streams,
                                            scope_kind kind = scope_kind::capture) noexcept {
    auto* const found = manager_.pools().find(pool);
    if (found == nullptr || found->uses == 0 || found->is_open || !found->is_awake()) return false;
    manager_.pools().open(*found, streams, kind);
    return true;
  }
  /// Closes the scope of a private pool.
  ///   Returns:  false if it has none
  [[nodiscard]] bool end_allocate_to_pool(pool_id pool) noexcept {
    auto* const found = manager_.pools().find(pool);
    if (found == nullptr || !found->is_open) return false;
    manager_.pools().close(*found);
    return true;
  }
  /// Whether any scope of the kind capture is open.
  [[nodiscard]] bool is_capturing() const noexcept { return manager_.pools().any_capture(); }
  /// Releases the idle memory of a private pool without uses. First waits for its pending frees. Does nothing
  /// during a capture.
  void trim_pool(pool_id pool) noexcept {
    auto* const found = manager_.pools().find(pool);
    if (found == nullptr || found->uses > 0 || manager_.pools().any_capture()) return;
    {
      const detail::growing_request in(*found);
      manager_.wait_for_pending_of([found](const detail::pool_group& g) { return &g == found; });
      sharing_.wait_for_unfinished_work();
      sharing_.coalesce_idle();
      manager_.for_each_idle_of(*found, [this](detail::block& idle) {
        if (backend_.releasable(idle) == 0) return false;
        (void)backend_.release(idle);
        return true;
      });
    }
    shrink();
  }

  // Checkpoints.

  /// Records the state of a private pool: its segments, and in each the sizes of the blocks and which of them
  /// are live. restore_pool brings it back.
  ///   Returns:  a checkpoint, or why there is none: the pool does not exist, has no use, sleeps, has a share,
  ///             or has a block that is pending or live by handle, or host memory ran out
  ///   Cost:     linear in the blocks; 32 bytes of host memory for each block of the pool
  ///   Source:   PyTorch's getCheckpointState
  [[nodiscard]] pool_checkpoint checkpoint_pool(pool_id pool) noexcept {
    return detail::record_pool(manager_, pool);
  }
  /// Brings the recorded state of a private pool back. Frees each live block of the pool, also those that
  /// `serves_on_oom` gave to other requests. Then the recorded blocks are live or free again, at their addresses.
  /// Segments acquired since stay, with free blocks.
  ///
  /// A recorded live block is live again even if the program freed it meanwhile. It has no recorded streams,
  /// and its request is its whole size, as in PyTorch. No call waits for a stream: the caller has ordered the
  /// next uses of the pool after the earlier ones.
  ///   Returns:  the addresses that were freed and that are live now, or why nothing changed: as
  ///             checkpoint_pool, the checkpoint is of another allocator, recorded memory went back to the
  ///             device, or a recorded segment has a block that is pending or has recorded streams.
  ///             If streams share blocks, also fails while another stream has unfinished work on a block.
  ///   Cost:     linear in the blocks of the allocator
  ///   Source:   PyTorch's setCheckpointPoolState
  restore_result restore_pool(const pool_checkpoint& checkpoint) noexcept {
    restore_result result = detail::restore_pool(manager_, checkpoint, policies_.split.oversize_from());
    if (!result.freed.empty()) evict(eviction_trigger::after_free);
    return result;
  }

  // Shares.

  /// Sets what a pool may hold, and what is kept for it. The default pool_id names the default pools. The
  /// idle memory of a private pool with a share may go back, so no captured graph may use such a pool.
  ///
  /// A pool holds whole segments, or in ranges whole chunks: the pool of a small block may hold 20 MiB. A request
  /// that would make its pool hold too much first waits for the pending frees of all pools, then fails. To give
  /// a pool what is guaranteed to it, recovery empties the caches, except during a capture. Other programs on
  /// the device, or a lower limit set later, may still take that memory.
  ///   Returns:  why nothing changed, if the pool does not exist or has no use, or the growth policy does not
  ///             grant the share
  ///   Cost:     linear in the blocks; a refused request, too. A hit is constant in the pools.
  template <typename R = Recipe>
    requires detail::admits_pools<typename R::growth>
  [[nodiscard]] share_result set_share(pool_id pool, pool_share share) noexcept {
    auto* const found = manager_.pools().find_any(pool);
    if (found == nullptr) return {.why = no_such_pool};
    if (found->is_private() && found->uses == 0) return {.why = "the pool has no use"};
    if (share.guaranteed > share.limit) return {.why = "the share guarantees more than its limit"};
    const pool_share before = found->share;
    manager_.pools().set_share(*found, share);
    manager_.watch_shares(
        [](void* self, const detail::pool_group& of, std::size_t bytes) noexcept {
          auto& me = *static_cast<caching_allocator*>(self);
          return !me.shares_.is_active() || me.shares_.may_grow(of, bytes, me.policies_);
        },
        [](void* self, const detail::block& free, std::size_t offset, std::size_t size) noexcept {
          static_cast<caching_allocator*>(self)->shares_.note_free(free, offset, size);
        },
        this);
    sharing_.coalesce_idle();
    shares_.count();
    const pool_demand now = shares_.demand(*found, 0, policies_);
    if (policies_.growth.grants(now)) return {};
    manager_.pools().set_share(*found, before);
    return {.why =
                now.held > share.limit ? "the pool holds more than the limit of the share" : kept_by_others};
  }
  detail::missing::shares_need_guarantee_shares_around_the_growth_policy set_share(pool_id pool,
                                                                                   pool_share share) noexcept
    requires(!detail::admits_pools<typename Recipe::growth>);
  /// The share of a pool. The default pool_id names the default pools.
  [[nodiscard]] pool_share share_of(pool_id pool) const noexcept {
    const auto* const found = manager_.pools().find_any(pool);
    return found != nullptr ? found->share : pool_share{};
  }
  /// The memory of a pool. The default pool_id names the default pools.
  ///   Returns:  zeros if the pool does not exist
  ///   Cost:     linear in the blocks
  [[nodiscard]] pool_usage bytes_of_pool(pool_id pool) const noexcept {
    const auto* const found = manager_.pools().find_any(pool);
    if (found == nullptr) return {};
    pool_usage now{found->reserved, found->reserved};
    if (!found->may_release()) return now;
    manager_.for_each_segment(
        [&](const detail::block& first) {
          if (first.list->where().group != found) return;
          if constexpr (!can_sleep) now.held -= detail::idle_bytes(first);
          for (const detail::block *b = &first, *end = first.prev; can_sleep && b != end; b = b->next)
            now.held -= b->is_free() ? backend_.releasable(*b) : 0;
        },
        true);
    return now;
  }

  // Sleep.

  /// Whether memory can sleep. It can if the recipe maps memory into ranges.
  static constexpr bool can_sleep = detail::recipe_traits<Recipe>::has_ranges;

  /// Puts the default pools and all private pools to sleep: gives back their memory, even under live blocks.
  /// Addresses and blocks stay. Until wake, the pools serve no requests, and record_stream refuses their
  /// blocks. Blocks can still be freed.
  ///
  /// First waits for the streams of these blocks, recorded ones too, and empties the cache of these pools.
  /// Contents that are saved are copied on the stream `copies`, into pageable host memory. Memory that the
  /// device fails to unmap stays mapped.
  ///   Requires:  no other work uses the memory. If streams share free lists (reuse_immediately), the caller
  ///              has waited for the streams.
  ///   Returns:   the bytes that went back under live blocks, or why the pools stay awake: a capture, the
  ///              rule of sleep_pool for `serves_on_oom`, host memory ran out, the device failed, or the
  ///              provider cannot copy
  ///   Source:    vLLM's sleep mode, torch_memory_saver
  template <typename R = Recipe>
    requires(detail::recipe_traits<R>::has_ranges)
  sleep_result sleep(sleep_contents contents, stream_id copies = {}) noexcept {
    return fall_asleep(sleeping_, nullptr, contents, copies);
  }
  /// Puts one pool to sleep like sleep(). The default pool_id names the default pools.
  ///
  ///   A pool with the option `serves_on_oom` does not sleep under what it lent: under a live block that serves
  ///   a request of the default pools, unless they fall asleep in the same call. They then do not wake before it.
  ///   Returns:  as sleep(); also fails if the pool does not exist or sleeps, or lent a live block
  template <typename R = Recipe>
    requires(detail::recipe_traits<R>::has_ranges)
  sleep_result sleep_pool(pool_id pool, sleep_contents contents, stream_id copies = {}) noexcept {
    const auto* const found = manager_.pools().find_any(pool);
    if (found == nullptr) return {.why = no_such_pool};
    if (found->is_asleep) return {.why = "the pool sleeps"};
    return fall_asleep(sleeping_, found, contents, copies);
  }
  /// Wakes all pools that sleep: maps memory at their addresses and copies saved contents back. Wakes all of
  /// them or none. If memory is missing, first empties the cache as trim() does.
  ///   Returns:  the bytes that came from the device, or why nothing changed, and how many bytes are missing
  template <typename R = Recipe>
    requires(detail::recipe_traits<R>::has_ranges)
  sleep_result wake(stream_id copies = {}) noexcept {
    return wake_up(sleeping_, nullptr, copies);
  }
  /// Wakes one pool like wake(). The default pool_id names the default pools.
  ///   Returns:  as wake(); also fails if the pool does not exist or does not sleep
  template <typename R = Recipe>
    requires(detail::recipe_traits<R>::has_ranges)
  sleep_result wake_pool(pool_id pool, stream_id copies = {}) noexcept {
    const auto* const found = manager_.pools().find_any(pool);
    if (found == nullptr) return {.why = no_such_pool};
    if (!found->is_asleep) return {.why = "the pool does not sleep"};
    return wake_up(sleeping_, found, copies);
  }
  no_sleep sleep(sleep_contents contents, stream_id copies = {}) noexcept
    requires(!can_sleep);
  no_sleep sleep_pool(pool_id pool, sleep_contents contents, stream_id copies = {}) noexcept
    requires(!can_sleep);
  no_sleep wake(stream_id copies = {}) noexcept
    requires(!can_sleep);
  no_sleep wake_pool(pool_id pool, stream_id copies = {}) noexcept
    requires(!can_sleep);
  /// Whether a pool sleeps. The default pool_id names the default pools.
  [[nodiscard]] bool is_asleep(pool_id pool = {}) const noexcept {
    const auto* const found = manager_.pools().find_any(pool);
    return found != nullptr && found->is_asleep;
  }

  /// Restarts the age of every idle segment.
  void restart_ages() noexcept {
    manager_.restart_ages();
    decay_.restart();
  }

  /// Registers `call(context)`, which runs before the device is asked, if no cached block fits. `call`
  /// returns whether it freed memory.
  ///   Returns:  false if host memory ran out
  [[nodiscard]] bool on_pressure(detail::callback_list::function call, void* context) noexcept {
    return pressure_.add(call, context);
  }
  /// Makes the error that allocate would throw.
  ///   Cost:  linear in the blocks
  [[nodiscard]] out_of_memory make_out_of_memory(std::size_t bytes, stream_id stream = {}) const noexcept {
    detail::oom_numbers numbers = detail::make_oom_numbers(introspect(), policies_, bytes, stream);
    numbers.refused = failure_.of(bytes, stream);
    if constexpr (has_shares) {
      if (shares_.is_active() && bytes <= max_request) {
        shares_.count();
        numbers.demand = shares_.demand(manager_.pools().destination(stream), numbers.segment, policies_);
        numbers.by_share = !policies_.growth.admits(numbers.demand);
      }
    }
    return out_of_memory(numbers);
  }
  [[nodiscard]] usage current_usage() const noexcept { return detail::usage_of(manager_, policies_.growth); }
  [[nodiscard]] auto statistics() const noexcept
    requires Counting::keeps_statistics
  {
    return manager_.counters().report(policies_.split.oversize_from());
  }
  void reset_peak_statistics() noexcept
    requires Counting::keeps_statistics
  {
    manager_.counters().reset_peak();
  }
  void reset_accumulated_statistics() noexcept
    requires Counting::keeps_statistics
  {
    manager_.counters().reset_accumulated();
  }
  /// Bytes of host memory that describe the blocks.
  [[nodiscard]] std::size_t footprint() const noexcept { return manager_.footprint() + backend_.footprint(); }
  /// Checks every invariant.
  ///   Returns:  null, or the first broken invariant as text
  ///   Cost:     linear in the blocks
  [[nodiscard]] const char* audit() const noexcept {
    if constexpr (has_shares) {
      if (const char* const broken = shares_.audit(); broken != nullptr) return broken;
    }
    return detail::audit(manager_, current_usage());
  }

  /// The numbers of the policies; they may be changed at any time.
  [[nodiscard]] tessera::policies<Recipe>& policies() noexcept { return policies_; }
  [[nodiscard]] Provider& provider() noexcept { return manager_.provider(); }
  [[nodiscard]] Observer& observer() noexcept { return manager_.observer(); }
  /// Whether streams are recorded for any block, live or pending.
  [[nodiscard]] bool has_recorded_streams() const noexcept { return manager_.has_recorded_streams(); }
  /// A read-only view of the blocks, for tools that show them.
  [[nodiscard]] auto introspect() const noexcept { return detail::introspection(manager_, backend_); }

  /// Takes a segment from the device, or maps memory at its address, and splits it into the blocks of a
  /// snapshot. For tools that start from a recorded state. A segment address of 0 means any address.
  ///   * `size` is a block size for which growth would take such a segment.
  ///   * `blocks` are the block_views of the segment, in the order of addresses.
  ///   * Their bytes are multiples of min_alignment. A block with 0 requested bytes is free.
  ///
  ///   Requires:  arguments that obey these rules
  ///   Returns:   false if the device gave other memory, or host memory ran out
  template <typename Blocks>
  [[nodiscard]] bool restore(const segment_view& segment, std::size_t size, const Blocks& blocks) noexcept {
    if (!manager_.pools().defaults().is_awake()) return false;
    detail::block* const found = backend_.restore(segment, size, policies_);
    const bool works = found != nullptr && (segment.address == 0 || found->address == segment.address) &&
                       found->size >= segment.bytes && manager_.restore_blocks(*found, blocks);
    if constexpr (has_shares) shares_.count();
    return works;
  }
  /// Serves a request as after a search that found no free block: by growth alone, without recovery. For tools
  /// that repeat a recorded request, which recovery may have followed.
  ///   Returns:  null if growth fails
  [[nodiscard]] void* try_allocate_by_growth(std::size_t bytes, stream_id stream = {}) noexcept {
    if (bytes == 0 || bytes > max_request) return nullptr;
    const request want = make_request(bytes, stream, manager_.pools().destination(stream));
    const detail::growing_request in(*want.group);
    failure_reason why{};
    detail::block* const found = reuse_or_grow(want, why);
    return found != nullptr ? reinterpret_cast<void*>(allocate_from<false>(*found, want).address) : nullptr;
  }
  /// Releases the idle segment that begins at an address. In a range, releases all chunks
  /// of the free blocks that overlap `segment`.
  ///   Returns:  bytes that went back to the device
  std::size_t release_idle_at(const segment_view& segment) noexcept {
    return backend_.release_idle_at(segment.address, segment.bytes);
  }

 private:
  static constexpr bool has_shares = detail::recipe_traits<Recipe>::has_shares;

  struct request {
    typename manager::group* group;  // the default pools, or a private pool
    std::size_t bytes,               // as requested
        size,                        // of the block that serves the request
        pool;                        // the pool of that block
    stream_id stream;
    [[no_unique_address]] decltype(std::declval<typename Recipe::streams>().reuse_key({})) key;
  };
  request make_request(std::size_t bytes, stream_id stream, typename manager::group& group) const noexcept {
    const std::size_t size = detail::block_size_for(policies_.rounding, bytes);
    return {&group, bytes,
            size,   detail::pool_for(policies_.pools, size),
            stream, policies_.streams.reuse_key(stream)};
  }

  [[nodiscard]] pool_id make_pool(pool_options options, const memory_source& from, pool_id name) noexcept {
    const auto* const made = manager_.pools().create(options, from, name.number);
    return made != nullptr ? pool_id{made->number} : pool_id{};
  }

  // The hit path.

  template <bool ByHandle>
  [[gnu::always_inline]] detail::block* serve(std::size_t bytes, stream_id stream) noexcept {
    if (bytes == 0 || bytes > max_request) return nullptr;
    if (policies_.streams.should_poll_events(manager_.pending_events()) && manager_.process_events())
      evict(eviction_trigger::after_free);
    request want = make_request(bytes, stream, manager_.pools().defaults());
    detail::block* found = manager_.pools().are_defaults_enough() ? obtain_cached(want) : nullptr;
    if (found == nullptr) {
      found = choose_block(bytes, stream);
      if (found == nullptr) return nullptr;
      const auto& from = *found->list->where().group;
      if (from.options.never_splits) want.size = found->size;
      if constexpr (can_sleep) {
        if (from.options.serves_on_oom) return serve_and_mark<ByHandle>(*found, bytes, stream);
      }
    }
    return &allocate_from<ByHandle>(*found, want);
  }
  /// Finds a free block if the default pools may not serve, or have no cached block. It is a function of its
  /// own, so that other requests do not pay for the choice.
  [[gnu::noinline]] detail::block* choose_block(std::size_t bytes, stream_id stream) noexcept {
    // Computed again: passing it would slow the hit path.
    const request want = make_request(bytes, stream, manager_.pools().destination(stream));
    detail::block* const found = manager_.pools().are_defaults_enough() ? nullptr : obtain_awake(want);
    return found != nullptr ? found : serve_miss(bytes, stream);
  }
  /// Serves a request from a pool that may lend, and marks what it lends: that does not sleep without the
  /// default pools.
  template <bool ByHandle>
  [[gnu::noinline]] detail::block* serve_and_mark(detail::block& found, std::size_t bytes,
                                                  stream_id stream) noexcept {
    const detail::pool_group* const from = found.list->where().group;
    request want = make_request(bytes, stream, manager_.pools().destination(stream));
    if (from->options.never_splits) want.size = found.size;
    detail::block& served = allocate_from<ByHandle>(found, want);
    if (from != want.group) served.mark_lent();
    return &served;
  }
  [[gnu::always_inline]] detail::block* obtain_cached(request want) noexcept {
    detail::free_list* const list = manager_.prepare_list(*want.group, want.pool, want.key);
    if (list == nullptr) return nullptr;
    detail::block* const found = backend_.obtain_block(*list, want.size, policies_);
    return found != nullptr && policies_.split.may_serve(want.size, found->size) ? found : nullptr;
  }
  detail::block* obtain_awake(const request& want) noexcept {
    return want.group->is_awake() ? admit(obtain_cached(want), want) : nullptr;
  }
  /// Returns a free block if its pool may hold what the request uses of it, otherwise null.
  detail::block* admit(detail::block* found, const request& want) noexcept {
    if constexpr (has_shares) {
      if (found == nullptr || !shares_.is_active()) return found;
      const std::size_t size = want.group->options.never_splits ? found->size : want.size;
      const placement at = place(*found, size, backend_.peek_placement(*found, size, policies_));
      return shares_.admit(*found, at.offset, at.size, policies_) ? found : nullptr;
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
    return {policies_.split.allocated_end() == block_end::low ? gap : found.size - size, size};
  }
  template <bool ByHandle>
  [[gnu::always_inline]] detail::block& allocate_from(detail::block& found, request want) noexcept {
    const std::size_t gap = backend_.consume_placement(found, want.size, policies_);
    const placement at = place(found, want.size, gap);
    const bool oversize = at.size >= policies_.split.oversize_from();
    return manager_.template allocate<ByHandle>(found, want.bytes, at.size, at.offset, oversize, want.stream);
  }
  /// Runs eviction if a block became free.
  ///   Returns:  whether there was a live block
  bool evict_after_free(detail::free_result result) noexcept {
    if (result == detail::free_result::free) evict(eviction_trigger::after_free);
    return result != detail::free_result::unknown;
  }
  [[nodiscard]] static bool sleeps(const detail::block& live) noexcept {
    if constexpr (can_sleep) return !live.list->where().group->is_awake();
    return false;
  }
  bool record(detail::block* live, stream_id stream) noexcept {
    return live != nullptr && (!policies_.streams.needs_event(live->list->key(), stream) ||
                               manager_.record_stream(*live, stream));
  }

  // The miss path.

  [[gnu::noinline, gnu::cold]] detail::block* serve_miss(std::size_t bytes, stream_id stream) noexcept {
    const request want = make_request(bytes, stream, manager_.pools().destination(stream));
    const detail::growing_request in(*want.group);
    failure_.begin(provider());
    if (!want.group->is_awake()) return refuse_while_asleep(want);
    if (relieve_pressure()) {
      if (detail::block* const found = obtain_awake(want)) return found;
    }
    evict(eviction_trigger::before_growth);
    failure_reason why{};
    if (detail::block* const found = reuse_or_grow(want, why)) return found;
    bool is_exact = false;
    if constexpr (has_shares) {
      if (detail::block* const found = recover_share(want, why, is_exact)) return found;
    }
    const recovery_steps steps = steps_after(why);
    if (steps.count > 0 || why == failure_reason::by_device || why == failure_reason::by_share) {
      if (detail::block* const found = obtain_from_others(want)) return found;
    }
    for (const recovery_steps::step step : steps) {
      if (step == recovery_steps::step::search_again) {
        if (detail::block* const found = search_again(want)) return found;
        continue;
      }
      if (!recover(step, want)) continue;
      const bool exactly = is_exact || step == recovery_steps::step::retry_exact_size;
      if (detail::block* const found = reuse_or_grow(want, why, exactly)) return found;
    }
    if constexpr (has_shares) {
      if (detail::block* const found = insist(shares_, want, why)) return found;
    }
    failure_.end(provider(), bytes, stream, detail::segment_size_for(manager_, policies_, want.size));
    if (!want.group->is_awake()) return refuse_while_asleep(want);
    manager_.report_oom(want.bytes, want.size, want.stream, *want.group, steps.count == 0);
    return nullptr;
  }
  /// Finds a free block for a request of the default pools in a private pool that serves it.
  detail::block* obtain_from_others(const request& want) noexcept {
    detail::block* found = nullptr;
    manager_.pools().for_each([&](auto& other) {
      if (found != nullptr || want.group->is_private() || !want.group->is_awake() ||
          !other.options.serves_on_oom || other.uses == 0)
        return;
      found = obtain_awake(make_request(want.bytes, want.stream, other));
    });
    return found;
  }
  /// The steps of recovery. With shares, the cache is emptied in any case: it may have memory that is guaranteed
  /// to another pool.
  [[nodiscard]] recovery_steps steps_after(failure_reason why) const noexcept {
    if (why == failure_reason::by_share) return {};
    recovery_steps steps = policies_.recovery.steps(why);
    if constexpr (has_shares) {
      bool empties = !shares_.is_active(), searches = false;
      for (const recovery_steps::step step : steps) {
        empties = empties || step == recovery_steps::step::release_cached;
        searches = searches || step == recovery_steps::step::search_again;
      }
      if (!empties)
        steps = {{recovery_steps::step::release_cached, recovery_steps::step::search_again},
                 searches ? 2u : 1u};
    }
    return steps;
  }
  /// Tries again what the shares admit, with a segment of exactly the block's size. After the caches were
  /// emptied, growth may have wanted a larger segment, or other threads may have filled their caches again.
  template <typename Shares>
  [[gnu::cold]] detail::block* insist(Shares& shares, const request& want, failure_reason& why) noexcept {
    for (int tries = 0; tries < 8 && shares.is_active(); ++tries) {
      if (detail::block* const found = reuse_or_grow(want, why, true)) return found;
      if (why == failure_reason::by_share || shares.cached() == 0) return nullptr;
      if (!recover(recovery_steps::step::release_cached, want)) return nullptr;
    }
    return nullptr;
  }
  /// If a share refused a request: waits for pending frees and tries again, then with a segment of exactly the
  /// block's size.
  [[gnu::cold]] detail::block* recover_share(const request& want, failure_reason& why,
                                             bool& is_exact) noexcept {
    if (why != failure_reason::by_share) return nullptr;
    if (!manager_.pools().any_capture()) {
      if (detail::block* const found = search_again(want)) return found;
      if (detail::block* const found = reuse_or_grow(want, why)) return found;
    }
    is_exact = why == failure_reason::by_share;
    return is_exact ? reuse_or_grow(want, why, true) : nullptr;
  }
  /// Waits for pending frees, except during a capture, and searches the free list again.
  [[gnu::cold]] detail::block* search_again(const request& want) noexcept {
    if (!manager_.pools().any_capture()) {
      manager_.wait_for_pending();
      sharing_.wait_for_unfinished_work();
      sharing_.coalesce_idle();
    }
    return obtain_awake(want);
  }
  detail::block* refuse_while_asleep(const request& want) noexcept {
    manager_.report(manager::action::refused, 0, want.bytes, want.size, want.stream, *want.group);
    return nullptr;
  }
  /// Calls the user's callbacks. If the request did not poll events first, also frees completed pending
  /// blocks.
  ///   Returns:  whether memory was freed
  bool relieve_pressure() noexcept {
    const bool polls_here = !policies_.streams.should_poll_events(manager_.pending_events());
    const bool freed = pressure_.run();
    return (polls_here && process_events()) || freed;
  }
  /// Gets memory from other streams or the device. Sets `why` to the reason for which growth fails.
  [[gnu::cold]] detail::block* reuse_or_grow(request want, failure_reason& why,
                                             bool exactly = false) noexcept {
    if (!want.group->is_awake()) return nullptr;  // since another thread put it to sleep
    if (detail::block* const found = admit(take_from_other_streams(want), want)) return found;
    const std::size_t segment = detail::segment_size_for(manager_, policies_, want.size, exactly);
    if constexpr (has_shares) {
      if (shares_.is_active()) return grow_share(shares_, want, segment, why);
    }
    return grow(want, segment, why);
  }
  detail::block* grow(const request& want, std::size_t segment, failure_reason& why) noexcept {
    why = detail::predict_failure(manager_, policies_, segment);
    if (is_growth_pointless(why)) return nullptr;
    detail::free_list* const list = manager_.prepare_list(*want.group, want.pool, want.key);
    return list != nullptr ? backend_.grow(*list, want.size, segment, policies_) : nullptr;
  }
  /// Grows a pool if it may hold more. In a range, that is known only afterwards. If it may not, the memory
  /// goes back.
  template <typename Shares>
  [[gnu::cold]] detail::block* grow_share(Shares& shares, const request& want, std::size_t segment,
                                          failure_reason& why) noexcept {
    why = failure_reason::by_share;
    if (!manager::traits::has_ranges && !shares.may_hold(*want.group, segment, policies_)) return nullptr;
    (void)shares.take_refused_growth();
    detail::block* const found = grow(want, segment, why);
    if (found == nullptr) {
      if (shares.take_refused_growth()) why = failure_reason::by_share;
      return nullptr;
    }
    why = failure_reason::by_share;
    if (admit(found, want) != nullptr) return found;
    if (!manager_.pools().any_capture() && backend_.releasable(*found) > 0) (void)backend_.release(*found);
    return nullptr;
  }
  /// Moves free memory of other streams to this request's list, if the recipe allows it. May make the stream
  /// wait. Returns that memory as one free block, or null.
  detail::block* take_from_other_streams(request want) noexcept {
    if constexpr (!Recipe::streams::reuses_across_streams) return nullptr;
    detail::free_list* const list = manager_.prepare_list(*want.group, want.pool, want.key);
    return list != nullptr ? sharing_.take_from_other_streams(*list, want.size, policies_) : nullptr;
  }
  /// Whether a predicted failure makes growth pointless. A backend that moves memory may succeed even at the
  /// limit.
  [[nodiscard]] bool is_growth_pointless(failure_reason why) const noexcept {
    if (why == failure_reason::by_limit) return !Recipe::growth::backend::moves_memory;
    return why == failure_reason::by_capacity && policies_.recovery.steps(why).count == 0;
  }
  /// Takes a recovery step.
  ///   Returns:  whether another try may succeed
  bool recover(recovery_steps::step step, request want) noexcept {
    if (step == recovery_steps::step::retry_exact_size) return true;
    if (step == recovery_steps::step::release_cached) {
      if (manager_.pools().any_capture()) return false;
      empty_cache(0);
      if constexpr (detail::reclaiming_provider<Provider>) (void)provider().reclaim();
      ++manager_.counters().num_alloc_retries;
      evict(eviction_trigger::after_free);
      return true;
    }
    detail::free_list* const list = manager_.find_or_create_list(*want.group, want.pool, want.key);
    return list != nullptr && release_oversize(*list, want.size);
  }

  // Releasing memory to the device.

  /// Releases free oversize blocks until `wanted` bytes went back.
  ///   Returns:  whether that many went back
  [[gnu::cold]] bool release_oversize(detail::free_list& list, std::size_t wanted) noexcept {
    const std::size_t oversize = policies_.split.oversize_from();
    const auto release = [this](detail::block& b) { return backend_.release(b); };
    using order = typename manager::order;
    return oversize <= unlimited / 2 &&
           detail::release_largest<order, manager::traits::has_ranges>(list, wanted, oversize, release);
  }
  /// Releases the idle segments for which may_release(block) is true, until at most `keep` bytes are reserved.
  template <typename F>
  [[gnu::cold]] void release_idle(std::size_t keep, F may_release) noexcept {
    if (manager_.reserved_after_releases() <= keep) return;
    sharing_.coalesce_idle();
    manager_.for_each_releasable([&](detail::block& idle) {
      if (manager_.reserved_after_releases() <= keep || backend_.releasable(idle) == 0) return false;
      if (!may_release(idle)) return false;
      (void)backend_.release(idle);
      return true;
    });
  }
  [[gnu::cold]] void empty_cache(std::size_t keep) noexcept {
    manager_.wait_for_pending();
    sharing_.wait_for_unfinished_work();
    release_idle(keep, [](const detail::block&) { return true; });
    shrink();
  }
  void shrink() noexcept {
    if constexpr (can_sleep) sleeping_.drop_free([](const auto& g) { return g.may_release(); });
    backend_.shrink();
  }
  [[gnu::always_inline]] void evict(eviction_trigger when) noexcept {
    const usage current = current_usage();
    const std::size_t wanted = policies_.eviction.bytes_to_evict(when, current);
    if (wanted > 0) evict_bytes(when, current, wanted);
  }
  /// Evicts idle segments in passes, as the policy decides. Stops once `wanted` bytes went back or a pass
  /// released nothing.
  [[gnu::noinline]] void evict_bytes(eviction_trigger when, const usage& now, std::size_t wanted) noexcept {
    const auto& policy = policies_.eviction;
    const std::size_t min_size = detail::min_candidate_size(policy, now);
    for (std::size_t freed = 0, before = unlimited; freed < wanted && freed != before;) {
      before = freed;
      sharing_.coalesce_idle();
      auto time = manager_.now();
      idle_segment totals{.trigger = when};
      manager_.for_each_idle(
          [&](const detail::block& b) {
            const std::size_t bytes = backend_.releasable(b);
            if (!policy.is_candidate(bytes, now)) return false;
            const std::uint64_t age = manager_.age(b, time);
            ++totals.candidates;
            totals.total_age += age;
            if (age > totals.max_age) totals.max_age = age;
            totals.excess += decay_.excess_of(policy, bytes, age);
            return false;
          },
          min_size);
      const std::size_t allowance = decay_.kept_of_evicted(policy, time);
      totals.excess -= allowance < totals.excess ? allowance : totals.excess;
      manager_.for_each_idle(
          [&](detail::block& b) {
            idle_segment idle = totals;
            idle.bytes = backend_.releasable(b);
            idle.age = manager_.age(b, time);
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

  // Sleep.

  static constexpr const char* no_such_pool = "no such pool exists";
  static constexpr const char* kept_by_others = "other pools hold the memory, or it is guaranteed to them";
  static constexpr const char* lends =
      "a live block of the pool serves a request of the default pools: free it, or put all pools to sleep";
  static constexpr const char* lent_sleeps =
      "a pool that sleeps has a live block of the default pools: wake that pool first, or all pools";
  static constexpr const char* scope_is_open = "a scope of the kind capture is open";
  /// Calls f(selects) while the selected groups serve no requests: those that are asleep or not, as `asleep`
  /// says, and no other call changes. With `only`, no other group is selected.
  template <typename F>
  sleep_result change_sleep(const detail::pool_group* only, bool asleep, F f) noexcept {
    if (manager_.pools().any_capture()) return {.why = scope_is_open};
    bool is_changing = false;
    manager_.pools().for_each([&](const auto& g) {
      is_changing = is_changing || (g.changed_by != nullptr && (only == nullptr || only == &g));
    });
    if (is_changing) return {.why = "another call puts the pool to sleep or wakes it"};
    const char mark = 0;
    const detail::changed_groups selects{&mark};
    manager_.pools().for_each([&](auto& g) {
      if (g.changed_by == nullptr && g.is_asleep == asleep && (only == nullptr || only == &g))
        manager_.pools().set_sleep(g, asleep, &mark);
    });
    const sleep_result result = f(selects);
    manager_.pools().for_each([&](auto& g) {
      if (selects(g)) manager_.pools().set_sleep(g, asleep != static_cast<bool>(result), nullptr);
    });
    return result;
  }
  template <typename Sleeping>
  sleep_result fall_asleep(Sleeping& sleeping, const detail::pool_group* only, sleep_contents contents,
                           stream_id copies) noexcept {
    return change_sleep(only, false, [&](detail::changed_groups selects) -> sleep_result {
      if (!selects(manager_.pools().defaults()) && sleeping.has_lent(selects)) return {.why = lends};
      manager_.wait_for_pending_of(selects);
      // Other threads may have run during the wait.
      if (manager_.pools().any_capture()) return {.why = scope_is_open};
      if (!manager_.finish_work_of(selects))
        return {.why = "the device failed to finish the work of a stream"};
      manager_.pools().for_each([&](auto& g) {
        if (!selects(g)) return;
        manager_.for_each_idle_of(g, [this](detail::block& idle) {
          return backend_.releasable(idle) > 0 && backend_.release(idle) > 0;
        });
      });
      return sleeping.sleep(selects, contents, copies);
    });
  }
  template <typename Sleeping>
  sleep_result wake_up(Sleeping& sleeping, const detail::pool_group* only, stream_id copies) noexcept {
    return change_sleep(only, true, [&](detail::changed_groups selects) -> sleep_result {
      if (selects(manager_.pools().defaults()) &&
          sleeping.has_lent([selects](const auto& g) { return g.is_asleep && !selects(g); }))
        return {.why = lent_sleeps};
      if constexpr (has_shares) {
        if (const sleep_result refused = refuse_wake(sleeping, selects); !refused) return refused;
      }
      sleep_result result = sleeping.wake(selects, copies, policies_);
      if (result.missing > 0) {
        (void)pressure_.run();
        if (manager_.pools().any_capture()) return {.missing = result.missing, .why = scope_is_open};
        empty_cache(0);
        if constexpr (detail::reclaiming_provider<Provider>) (void)provider().reclaim();
        if (manager_.pools().any_capture()) return {.missing = result.missing, .why = scope_is_open};
        result = sleeping.wake(selects, copies, policies_);
      }
      if constexpr (has_shares) shares_.count();
      return result;
    });
  }

  /// Says why the shares do not let the selected pools wake, if they do not.
  template <typename Sleeping>
  [[nodiscard]] sleep_result refuse_wake(Sleeping& sleeping, detail::changed_groups selects) noexcept {
    sleep_result result;
    if (!shares_.is_active()) return result;
    sleeping.drop_free(selects);
    shares_.count();
    manager_.pools().for_each([&](auto& g) {
      if (!selects(g)) return;
      g.planned = sleeping.bytes_of(g);
      manager_.pools().update_sums(g);
      const pool_demand d = shares_.demand(g, 0, policies_);
      if (!result || policies_.growth.admits(d)) return;
      const std::size_t room = d.limit > d.others ? d.limit - d.others : 0;
      const std::size_t most = room < d.share.limit ? room : d.share.limit;
      result = {.missing = d.held > most ? d.held - most : d.held,
                .why = d.held > d.share.limit ? "the limit of the pool is less than what it would hold"
                                              : kept_by_others};
    });
    manager_.pools().for_each([&](auto& g) {
      if (!selects(g)) return;
      g.planned = 0;
      manager_.pools().update_sums(g);
    });
    return result;
  }

  tessera::policies<Recipe> policies_;
  manager manager_;
  [[no_unique_address]] detail::stream_sharing<manager> sharing_{manager_};
  // Destroyed before the manager: the backend's destructor releases memory through it.
  backend backend_{manager_};
  // Functions take a part that may be unneeded as a parameter, so that an explicit instantiation compiles.
  template <bool Needed, typename Part>
  using part_if = std::conditional_t<Needed, Part, detail::unneeded<Part>>;
  [[no_unique_address]] part_if<can_sleep, detail::sleeping_memory<manager>> sleeping_{manager_, backend_};
  [[no_unique_address]] part_if<has_shares, detail::pool_shares<manager, backend>> shares_{manager_,
                                                                                           backend_};
  detail::callback_list pressure_;
  [[no_unique_address]] detail::latest_failure<Provider> failure_;
  [[no_unique_address]] detail::decay<typename Recipe::eviction> decay_;
};

}  // namespace tessera
