// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/detail/blocks/stream_end.hpp>

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
///   Cost:     device calls; linear in the idle memory of the stream, and in the blocks if streams are recorded for any
template <typename Allocator>
bool end_stream(Allocator& allocator, stream_id stream) noexcept {
  bool works = true;
  allocator.for_each_allocator(
      [&](auto& in) { works = tessera::detail::end_stream_in(in, stream) && works; });
  if constexpr (requires { allocator.withdraw_uses(stream); })
    works = allocator.withdraw_uses(stream) && works;
  // For background_reclaiming, in which only such a call asks for events.
  if constexpr (requires { allocator.process_events(); }) (void)allocator.process_events();
  return works;
}

}  // namespace tessera::inline v0_1::interop
