// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <utility>

#include <tessera/core/allocator_event.hpp>
#include <tessera/core/bytes.hpp>
#include <tessera/core/error.hpp>
#include <tessera/core/growth_way.hpp>
#include <tessera/core/statistics.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/detail/block.hpp>
#include <tessera/detail/caller_mistake.hpp>
#include <tessera/detail/get_memory.hpp>
#include <tessera/detail/handle.hpp>
#include <tessera/detail/hooks.hpp>
#include <tessera/detail/introspection.hpp>
#include <tessera/detail/machine_for.hpp>
#include <tessera/detail/reclaim.hpp>
#include <tessera/detail/totals.hpp>
#include <tessera/facade.hpp>
#include <tessera/fwd.hpp>
#include <tessera/provider/provider.hpp>
#include <tessera/recipe/check_policies.hpp>
#include <tessera/recipe/check_provider.hpp>
#include <tessera/recipe/recipe.hpp>

namespace tessera {

/// A stream-aware caching allocator: `Recipe` decides, `Provider` gives the memory, `Observer` is told, `Counting` keeps count.
///
/// It owns its provider, stays where it is, and gives every segment back when it ends, with what is live there, of which a
/// leak_checked [adaptor/leak_checked.hpp] tells. One thread at a time may use it, which thread_checked checks.
template <typename Recipe, device_provider Provider, event_observer Observer, typename Counting>
class caching_allocator
    : public detail::common_calls<caching_allocator<Recipe, Provider, Observer, Counting>> {
  using calls = detail::common_calls<caching_allocator>;
  static_assert(check_policies<Recipe>() && check_provider<Recipe, Provider>());

 public:
  caching_allocator() : caching_allocator(Provider{}) {}
  explicit caching_allocator(Provider device, policies<Recipe> chosen = {}, Observer observer = {})
      : policies_(std::move(chosen)), machine_(std::move(device), std::move(observer)) {}

  // allocate, and the calls that take an alignment, are in facade.hpp.
  using calls::try_allocate, calls::deallocate, calls::record_stream;
  /// Serves a request of `bytes` on `stream`; null of 0 bytes, and where allocate throws.
  [[nodiscard]] void* try_allocate(std::size_t bytes, stream_id stream = {}) noexcept {
    const detail::block* const given = serve<false>(bytes, stream);
    return given != nullptr ? reinterpret_cast<void*>(given->address) : nullptr;
  }

  /// The same, but for a caller who keeps a handle, which saves the look-ups; empty where try_allocate gives null.
  [[nodiscard]] handle allocate_by_handle(std::size_t bytes, stream_id stream = {}) noexcept {
    return handle(serve<true>(bytes, stream));
  }

  /// Takes a block back, for reuse once a later call finds the streams recorded for it past this one. Null is ignored.
  ///   Requires:  an address that this allocator handed out and did not get back since; else the program ends
  void deallocate(void* p) noexcept {
    if (p != nullptr && !try_deallocate(p)) detail::refuse_address(introspect(), "deallocate", p);
  }
  ///   Requires:  also that `bytes` is what was requested
  void deallocate(void* p, std::size_t bytes) noexcept {
    const detail::block* const live = machine_.find_live(p);
    if (live != nullptr && live->facts.requested != bytes)
      detail::refuse_size(introspect(), "deallocate", p, bytes);
    deallocate(p);
  }
  ///   Requires:  a handle that this allocator gave and did not get back since; not all others are noticed
  void deallocate(handle h) noexcept {
    if (h && !settle(machine_.take_back(*h.block()))) detail::refuse_handle("deallocate");
  }
  /// The same as deallocate, but an address that is not a live block's changes nothing and gives false.
  [[nodiscard]] bool try_deallocate(void* p) noexcept { return settle(machine_.take_back(p)); }
  /// Takes a block back behind the work of `stream`, which may reuse it at once; the other streams recorded for the block
  /// are made to wait there.
  ///   Returns:  false, and nothing changes, for an address that is not a live block's
  [[nodiscard]] bool try_deallocate_behind(void* p, stream_id stream) noexcept
    requires(Recipe::streams::reuses_across_streams)
  {
    return settle(machine_.take_back(p, stream));
  }
  /// Serves a request with a live block that would serve it if it were free: the block is large enough, would not be split,
  /// and only its own stream uses it. Statistics and events are those of a free and an allocation.
  ///   Returns:  false, and nothing changes, where it would not
  [[nodiscard]] bool reuse_in_place(void* p, std::size_t bytes, stream_id stream) noexcept {
    detail::block* const block = bytes > 0 && bytes <= max_request ? machine_.find_live(p) : nullptr;
    if (block == nullptr || block->what_is_noted().has_uses) return false;
    const std::size_t size = policies_.rounding.block_size(bytes);
    const bool fits = block->size >= size && policies_.split.may_serve(size, block->size) &&
                      !policies_.split.should_split(size, block->size) &&
                      policies_.pools.select(size) == block->home->pool() &&
                      stream_id(policies_.streams.reuse_key(stream)) == block->home->key();
    if (fits) machine_.reuse_in_place(*block, bytes, stream);
    return fits;
  }

  /// Notes that `stream` uses a live block, so that freeing it waits for that use. Null and an empty handle are ignored.
  ///   Requires:  as deallocate does
  ///   Returns:   true where the use is noted, or need not be, as of the block's own stream; false for null, for a stream
  ///              that does not exist, and where host memory ran out
  [[nodiscard]] bool record_stream(void* p, stream_id stream) noexcept {
    detail::block* const live = machine_.find_live(p);
    if (live == nullptr && p != nullptr) detail::refuse_address(introspect(), "record_stream", p);
    return note_use(machine_, policies_.streams, live, stream);
  }
  [[nodiscard]] bool record_stream(handle h, stream_id stream) noexcept {
    if (h && !h.block()->is_by_handle()) detail::refuse_handle("record_stream");
    return note_use(machine_, policies_.streams, h.block(), stream);
  }
  /// The same, but an address that is not a live block's gives false, too.
  [[nodiscard]] bool try_record_stream(void* p, stream_id stream) noexcept {
    return note_use(machine_, policies_.streams, machine_.find_live(p), stream);
  }

  /// Empties the cache: waits for pending frees, then gives idle segments back until at most `keep` bytes are reserved.
  void trim(std::size_t keep = 0) noexcept {
    empty_cache(machine_, keep);
    evict(eviction_trigger::after_free);
  }
  /// The same without waiting: blocks that streams still use stay.
  ///   Source:  PyTorch's empty_cache of pinned memory
  void trim_without_waiting(std::size_t keep = 0) noexcept {
    (void)process_events();
    give_back_idle(machine_, keep);
  }
  /// Frees the pending blocks whose events have completed, as each allocation does first.
  ///   Returns:  whether there were any
  bool process_events() noexcept {
    const bool any = machine_.retire_pending();
    if (any) evict(eviction_trigger::after_free);
    return any;
  }
  /// Waits for all work that `stream` was given, then lets the eviction policy release idle segments.
  ///   Returns:  false where the device failed
  bool synchronize(stream_id stream) noexcept
    requires(Recipe::streams::reuses_across_streams)
  {
    if (!machine_.wait_for(stream)) return false;
    (void)machine_.retire_pending();
    evict(eviction_trigger::after_synchronize);
    return true;
  }
  /// Lets the age of every idle segment begin anew.
  void restart_ages() noexcept { machine_.blocks().restart_ages(); }

  /// Calls `call(context)`, which says whether it freed something, where nothing cached fits, before the device is asked.
  /// False where host memory ran out.
  [[nodiscard]] bool on_pressure(detail::hooks::function call, void* context) noexcept {
    return pressure_.add(call, context);
  }
  /// Returns what allocate throws.
  ///   Cost:  linear in the blocks
  [[nodiscard]] out_of_memory failure(std::size_t bytes, stream_id stream = {}) const noexcept {
    return out_of_memory(detail::numbers_of(introspect(), policies_, bytes, stream));
  }
  [[nodiscard]] usage now() const noexcept { return usage_of(machine_, policies_.growth); }
  [[nodiscard]] auto statistics() const noexcept
    requires Counting::keeps_statistics
  {
    return machine_.books().report(policies_.split.oversize());
  }
  void reset_peak_statistics() noexcept { machine_.books().reset_peak(); }
  void reset_accumulated_statistics() noexcept { machine_.books().reset_accumulated(); }
  /// Bytes of host memory that describe the blocks.
  [[nodiscard]] std::size_t footprint() const noexcept { return machine_.footprint(); }
  /// The first broken invariant in words, or null; walks every block.
  [[nodiscard]] const char* audit() const noexcept { return detail::audit(machine_.blocks(), now()); }

  /// The numbers of the policies; they may be changed at any time.
  [[nodiscard]] policies<Recipe>& settings() noexcept { return policies_; }
  [[nodiscard]] Provider& device() noexcept { return machine_.device(); }
  [[nodiscard]] Observer& observer() noexcept { return machine_.observer(); }
  /// Whether streams are recorded for any block, live or pending.
  [[nodiscard]] bool has_recorded_streams() const noexcept { return machine_.has_uses(); }
  /// A read-only view of the blocks, for tools that show them.
  [[nodiscard]] auto introspect() const noexcept { return detail::introspection(machine_); }

  /// Takes a segment, or maps memory at its address, and splits it as it was where it was recorded. For tools that begin
  /// from a recorded state.
  ///   Requires:  an address of 0 stands for any; `blocks` are the segment's block_views from its begin; their bytes are multiples of min_alignment, and
  ///              where nothing was requested they are free; `size` is that of a block which would be served from it
  ///   Returns:   false where the device gave other memory, or host memory ran out
  template <typename Blocks>
  [[nodiscard]] bool restore(const segment_view& segment, std::size_t size, const Blocks& blocks) noexcept {
    detail::block* found = nullptr;
    if constexpr (Recipe::growth::way == growth_way::segments) {
      (void)size;
      const bool oversize = segment.bytes >= policies_.split.oversize();
      found = machine_.acquire(segment.pool, segment.stream, segment.bytes, oversize,
                               policies_.pages.backing(segment.bytes));
    } else {
      detail::free_list* const home = machine_.home(segment.pool, segment.stream);
      const std::size_t page = policies_.growth.page_size(size);
      const std::size_t range = policies_.growth.range_size(machine_.device().capacity());
      if (home != nullptr && machine_.make_room())
        found = machine_.map_at(*home, segment.address, segment.bytes,
                                {page, range, policies_.pages.backing(page)});
    }
    return found != nullptr && (segment.address == 0 || found->address == segment.address) &&
           found->size >= segment.bytes && machine_.cut_up(*found, blocks);
  }
  /// Releases the idle segment that begins at an address, or in ranges, what is free in it.
  ///   Returns:  bytes that went back to the device
  std::size_t release_idle_at(const segment_view& segment) noexcept {
    return machine_.release_idle_at(segment.address, segment.bytes);
  }

 private:
  struct request {
    std::size_t bytes, size, pool;  // as asked for; of the block that serves it; where that lives
    stream_id stream;
    [[no_unique_address]] decltype(std::declval<typename Recipe::streams>().reuse_key({})) key;
  };
  template <bool ByHandle>
  [[gnu::always_inline]] detail::block* serve(std::size_t bytes, stream_id stream) noexcept {
    if (bytes == 0 || bytes > max_request) return nullptr;
    if (look_first(machine_, policies_.streams)) evict(eviction_trigger::after_free);
    const request want = ask(bytes, stream);
    detail::block* found = reuse(want);
    if (found == nullptr) found = grow(bytes, stream);
    return found != nullptr ? &hand_out<ByHandle>(*found, want) : nullptr;
  }
  bool settle(detail::taken taken) noexcept {
    if (taken == detail::taken::free) evict(eviction_trigger::after_free);
    return taken != detail::taken::unknown;
  }
  request ask(std::size_t bytes, stream_id stream) const noexcept {
    const std::size_t size = block_size_for(policies_.rounding, bytes);
    return {bytes, size, pool_for(policies_.pools, size), stream, policies_.streams.reuse_key(stream)};
  }
  [[gnu::always_inline]] detail::block* reuse(request want) noexcept {
    detail::free_list* const home = machine_.home(want.pool, want.key);
    if (home == nullptr || !machine_.make_room()) return nullptr;
    detail::block* const found = best_fit(machine_, policies_, *home, want.size);
    return found != nullptr && policies_.split.may_serve(want.size, found->size) ? found : nullptr;
  }
  template <bool ByHandle>
  [[gnu::always_inline]] detail::block& hand_out(detail::block& found, request want) noexcept {
    std::size_t gap = 0;
    if constexpr (Recipe::growth::way != growth_way::segments)
      gap = machine_.gap(found, want.size, policies_.growth.base_alignment(want.size));
    const bool cut = policies_.split.should_split(want.size, found.size - gap);
    const std::size_t size = cut ? want.size : found.size - gap;
    const std::size_t at = policies_.split.used_end() == block_end::low ? gap : found.size - size;
    const bool oversize = size >= policies_.split.oversize();
    return machine_.template hand_out<ByHandle>(found, want.bytes, size, at, oversize, want.stream);
  }

  [[gnu::noinline]] detail::block* grow(std::size_t bytes, stream_id stream) noexcept {
    const request want = ask(bytes, stream);  // again: to hand it over would cost each hit
    if (auto* found = relieve(pressure_, machine_, policies_.streams) ? reuse(want) : nullptr) return found;
    evict(eviction_trigger::before_growth);
    failure_reason why{};
    if (detail::block* const found = acquire(want, why)) return found;
    const recovery_steps steps = policies_.recovery.steps(why);
    for (recovery_step step : steps) {
      const bool exactly = step == recovery_step::grow_exactly;
      if (auto* const found = recover(step, want) ? acquire(want, why, exactly) : nullptr) return found;
    }
    machine_.tell_oom(want.bytes, want.size, want.stream, steps.count == 0);
    return nullptr;
  }

  detail::block* acquire(request want, failure_reason& why, bool exactly = false) noexcept {
    if (auto* const found = borrow(machine_, policies_, want.pool, want.key, want.size)) return found;
    const std::size_t segment = segment_for(machine_, policies_, want.size, exactly);
    why = refusal_ahead(machine_, policies_, segment);
    if (is_refused_ahead(policies_, why)) return nullptr;
    detail::free_list* const home = machine_.home(want.pool, want.key);
    const bool has_room = home != nullptr && machine_.make_room();
    return has_room ? get_memory(machine_, policies_, *home, want.size, segment) : nullptr;
  }
  bool recover(recovery_step step, request want) noexcept {
    if (step == recovery_step::grow_exactly) return true;
    if (step == recovery_step::evict_all) {
      empty_all_caches(machine_);
      evict(eviction_trigger::after_free);
      return true;
    }
    detail::free_list* const home = machine_.home(want.pool, want.key);
    return home != nullptr && release_fitting(machine_, policies_.split.oversize(), *home, want.size);
  }
  void evict(eviction_trigger when) noexcept { evict_idle(machine_, policies_.eviction, when, now()); }

  policies<Recipe> policies_;
  typename detail::machine_for<Recipe::growth::way, Provider, Observer, Counting, Recipe::pools::count,
                               Recipe::streams::uses_events, Recipe::streams::reuses_across_streams,
                               detail::free_order_of<typename Recipe::split>>::type machine_;
  detail::hooks pressure_;
};

}  // namespace tessera
