// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <utility>

#include <tessera/core/allocator_event.hpp>
#include <tessera/core/bytes.hpp>
#include <tessera/core/error.hpp>
#include <tessera/core/growth_way.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/core/usage.hpp>
#include <tessera/detail/allocate_calls.hpp>
#include <tessera/detail/block.hpp>
#include <tessera/detail/caller_mistake.hpp>
#include <tessera/detail/get_memory.hpp>
#include <tessera/detail/handle.hpp>
#include <tessera/detail/hooks.hpp>
#include <tessera/detail/machine_for.hpp>
#include <tessera/detail/reclaim.hpp>
#include <tessera/detail/totals.hpp>
#include <tessera/observe/explain_failure.hpp>
#include <tessera/provider/provider.hpp>
#include <tessera/recipe/check_policies.hpp>
#include <tessera/recipe/check_provider.hpp>
#include <tessera/recipe/recipe.hpp>

namespace tessera {

/// A stream-aware caching allocator: `Recipe` decides, `Provider` gives the memory, `Observer` is told, `Counting` keeps count.
///
/// It owns its provider, stays where it is, and gives every segment back when it ends, with what is live there, of which a
/// leak_checked [adaptor/leak_checked.hpp] tells. One thread at a time may use it, which a one_thread checks.
template <typename Recipe, device_provider Provider, event_observer Observer = ignore_events,
          typename Counting = count_everything>
class caching_allocator : public allocate_calls<caching_allocator<Recipe, Provider, Observer, Counting>> {
  using calls = allocate_calls<caching_allocator>;
  static_assert(check_policies<Recipe>() && check_provider<Recipe, Provider>());

 public:
  caching_allocator() : caching_allocator(Provider{}) {}
  explicit caching_allocator(Provider device, policies<Recipe> chosen = {}, Observer observer = {})
      : policies_(std::move(chosen)), machine_(std::move(device), std::move(observer)) {}

  // allocate, and the calls that take an alignment, are in allocate_calls.hpp.
  using calls::try_allocate, calls::deallocate, calls::record_stream;
  /// Serves a request of `bytes` on `stream`; null of 0 bytes, and where allocate throws.
  [[nodiscard]] void* try_allocate(std::size_t bytes, stream_id stream = {}) noexcept {
    if (bytes == 0 || bytes > max_request) return nullptr;
    if (look_first(machine_, policies_.streams)) evict(eviction_trigger::after_free);
    const request want = ask(bytes, stream);
    detail::block* found = reuse(want);
    if (found == nullptr) found = grow(bytes, stream);
    return found != nullptr ? hand_out(*found, want) : nullptr;
  }

  /// The same, but for a caller who keeps a handle, which saves the look-ups; empty where try_allocate gives null.
  [[nodiscard]] handle allocate_by_handle(std::size_t bytes, stream_id stream = {}) noexcept {
    return handle(try_allocate(bytes, stream) != nullptr ? machine_.by_handle() : nullptr);
  }

  /// Takes a block back, for reuse once a later call finds the streams recorded for it past this one. Null is ignored.
  ///   Requires:  an address that this allocator handed out and did not get back since; else the program ends
  void deallocate(void* p) noexcept {
    if (p != nullptr && !try_deallocate(p)) refuse_address(machine_, "deallocate", p);
  }
  ///   Requires:  also that `bytes` is what was requested
  void deallocate(void* p, std::size_t bytes) noexcept {
    if (machine_.requested_at(p, bytes) != bytes) refuse_size(machine_, "deallocate", p, bytes);
    deallocate(p);
  }
  ///   Requires:  a handle that this allocator gave and did not get back since; not all others are noticed
  void deallocate(handle h) noexcept {
    if (h && !settle(machine_.take_back(*h.block()))) refuse_handle("deallocate");
  }
  /// The same as deallocate, but an address that is not a live block's changes nothing and gives false.
  [[nodiscard]] bool try_deallocate(void* p) noexcept { return settle(machine_.take_back(p)); }

  /// Notes that `stream` uses a live block, so that freeing it waits for that use. Null and an empty handle are ignored.
  ///   Requires:  as deallocate does
  ///   Returns:   true where the use is noted, or need not be, as of the block's own stream; false for null, for a stream
  ///              that does not exist, and where host memory ran out
  [[nodiscard]] bool record_stream(void* p, stream_id stream) noexcept {
    return note_use(machine_, policies_.streams, expect_live(machine_, "record_stream", p), stream);
  }
  [[nodiscard]] bool record_stream(handle h, stream_id stream) noexcept {
    return note_use(machine_, policies_.streams, expect_live(machine_, "record_stream", h), stream);
  }
  /// The same, but an address that is not a live block's gives false, too.
  [[nodiscard]] bool try_record_stream(void* p, stream_id stream) noexcept {
    return note_use(machine_, policies_.streams, machine_.find_live(p), stream);
  }

  /// Empties the cache: waits for pending frees, then gives idle segments back until at most `keep` bytes are reserved.
  void trim(std::size_t keep = 0) noexcept {
    empty_cache(machine_, keep), evict(eviction_trigger::after_free);
  }

  /// Calls `call(context)`, which says whether it freed something, where nothing cached fits, before the device is asked.
  /// False where host memory ran out.
  [[nodiscard]] bool on_pressure(detail::hooks::function call, void* context) noexcept {
    return pressure_.add(call, context);
  }
  /// What allocate throws; a walk over all blocks finds it out.
  [[nodiscard]] out_of_memory failure(std::size_t bytes, stream_id stream = {}) noexcept {
    return out_of_memory(explain_failure(machine_, policies_, bytes, stream));
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
  /// What carries the decisions out: for tools that begin from a recorded state.
  [[nodiscard]] auto& machine() noexcept { return machine_; }

 private:
  struct request {
    std::size_t bytes, size, pool;  // as asked for; of the block that serves it; where that lives
    stream_id stream;
    [[no_unique_address]] decltype(std::declval<typename Recipe::streams>().reuse_key({})) key;
  };
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
  [[gnu::always_inline]] void* hand_out(detail::block& found, request want) noexcept {
    std::size_t gap = 0;
    if constexpr (Recipe::growth::way != growth_way::segments)
      gap = machine_.gap(found, want.size, policies_.growth.base_alignment(want.size));
    const bool cut = policies_.split.should_split(want.size, found.size - gap);
    const std::size_t size = cut ? want.size : found.size - gap;
    const std::size_t at = policies_.split.handed_out() == block_end::low ? gap : found.size - size;
    const bool oversize = size >= policies_.split.oversize();
    return machine_.hand_out(found, want.bytes, size, at, oversize, want.stream);
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
    if (step == recovery_step::evict_all)
      return empty_all_caches(machine_), evict(eviction_trigger::after_free), true;
    detail::free_list* const home = machine_.home(want.pool, want.key);
    return home != nullptr && release_fitting(machine_, policies_.split.oversize(), *home, want.size);
  }
  void evict(eviction_trigger when) noexcept { evict_idle(machine_, policies_.eviction, when, now()); }

  policies<Recipe> policies_;
  typename detail::machine_for<Recipe::growth::way, Provider, Observer, Counting, Recipe::pools::count,
                               Recipe::streams::uses_events, Recipe::streams::crosses,
                               order_of<typename Recipe::split>>::type machine_;
  detail::hooks pressure_;
};

}  // namespace tessera
