// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

#include <tessera/detail/blocks/block.hpp>
#include <tessera/detail/blocks/free_list_map.hpp>
#include <tessera/detail/blocks/introspection.hpp>
#include <tessera/provider/provider.hpp>
#include <tessera/recipe/recipe.hpp>

namespace tessera::inline v0_1::detail {

/// Withdraws every record that a stream uses a live block.
///   Cost:  linear in the blocks, if any stream is recorded
template <typename Manager>
void drop_uses_of(Manager& manager, stream_id ended) noexcept {
  if constexpr (Manager::traits::uses_events) {
    if (!manager.has_recorded_streams()) return;
    manager.for_each_segment([&](block& first) {
      const block* const end = first.prev;
      for (block* b = &first; b != end; b = b->next)
        manager.pending().drop_uses_if(*b, [&](stream_id user) { return user == ended; });
    });
  }
}
/// Gives the idle memory of a stream back to the device.
template <typename Manager, typename Backend>
void release_idle_of(Manager& manager, Backend& backend, stream_id key) noexcept {
  using traits = typename Manager::traits;
  manager.for_each_group([&](typename Manager::group& in) {
    if (!manager.may_release(in)) return;
    const group_visit visit(in);
    auto release = [&](block& idle) {
      if (!manager.may_wait() || backend.releasable(idle) == 0) return false;
      (void)backend.release(idle);
      return true;
    };
    // A bound, because other threads may free blocks during a release.
    std::size_t tries = in.reserved / min_alignment + 1;
    for (std::size_t pool = 0; pool < traits::pools; ++pool) {
      free_list* const list = manager.find_or_create_list(in, pool, key);
      if (list == nullptr) continue;
      if (!walk_idle<typename Manager::order, traits::has_ranges>(*list, min_alignment, tries,
                                                                  block_function(release)))
        return;
    }
  });
}
/// Waits for the work of a stream; true at once if the device has neither events nor synchronize().
template <typename Device>
[[nodiscard]] bool finish_work_if_any(Device& device, stream_id stream) noexcept {
  constexpr bool has_streams = provider::event_provider<Device> || requires { device.synchronize(stream); };
  return !has_streams || finish_work(device, stream);
}

}  // namespace tessera::inline v0_1::detail

namespace tessera::inline v0_1::interop {

/// Tells an allocator that a stream ends, so that nothing waits for it any more. Call it before or after the stream is
/// destroyed, and before another stream may get the same handle. First it waits for the work of the stream.
///
/// * Records that the stream uses live blocks are withdrawn, and its pending frees complete.
/// * If the recipe keeps free blocks for their stream, idle memory of this stream goes back to the device, which gives it to
///   others. Otherwise its free blocks serve others already. Parts of segments with live blocks stay until those are freed.
/// * A new stream with the same handle waits for no use by the old one, and gets none of its idle memory.
///
///     tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device> gpu;
///     gpu.deallocate(gpu.allocate(5_MiB, tessera::stream_id{7}));
///     (void)tessera::interop::end_stream(gpu, tessera::stream_id{7});
///     std::printf("%zu bytes reserved\n", gpu.current_usage().reserved);  // 0
///
///   Returns:  false if the device failed, or if an extension forbids waiting for it. Then some of the stream's memory may
///             stay as it was
///   Cost:     device calls; linear in the blocks, if streams are recorded for any. Blocks in the memory of a plan are not
///             found
template <typename Allocator>
bool end_stream(Allocator& allocator, stream_id stream) noexcept {
  bool works = true;
  allocator.for_each_allocator([&](auto& in) {
    using recipe = typename std::remove_reference_t<decltype(in)>::recipe_type;
    auto& manager = tessera::detail::core_access::manager(in);
    if (!manager.may_wait() || !tessera::detail::finish_work_if_any(manager.provider(), stream)) {
      works = false;
      return;
    }
    tessera::detail::drop_uses_of(manager, stream);
    (void)in.process_events();
    if constexpr (!recipe::streams::reuses_across_streams &&
                  !tessera::detail::has_one_key<typename recipe::streams>)
      tessera::detail::release_idle_of(manager, tessera::detail::core_access::backend(in),
                                       tessera::detail::core_access::policies(in).streams.reuse_key(stream));
  });
  // For background_reclaiming, in which only such a call asks for events.
  if constexpr (requires { allocator.process_events(); }) (void)allocator.process_events();
  return works;
}

}  // namespace tessera::inline v0_1::interop
