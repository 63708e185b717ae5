// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/detail/blocks/stream_end.hpp>

namespace tessera::inline v0_1::interop {

/// Withdraws the record that `stream` uses a live block, so that a free does not wait for it. Other recorded streams stay.
///
/// A backend calls it when it knows that the use is over, or that the block's own stream waits for it. For example, torch_npu's
/// HCCL records its stream for the tensors of a collective, and erases it when the program's stream waits for the collective.
/// The block is then free at its free, without an event on the stream of HCCL.
///
///     tessera::caching_allocator<tessera::recipe::torch_npu<>, tessera::provider::simulated_npu> npu;
///     void* const sent = npu.allocate(5_MiB);
///     (void)npu.record_stream(sent, tessera::stream_id{7});            // the collective
///     (void)tessera::interop::erase_stream(npu, sent, tessera::stream_id{7});  // the block's stream waits for it
///     npu.deallocate(sent);                                            // free at once
///
///   Requires:  every use by `stream` is over, or the block's own stream waits for it
///   Returns:   false if no live block begins at `p`, or if the stream is not recorded for it; then nothing changes. A block
///              that was freed waits for its events, and is not live. Blocks in the memory of a plan are not found
///   Cost:      linear in the streams recorded for the block
///   Source:    torch_npu's eraseStream, which WorkHCCL::synchronize calls if the block is of the current stream
template <typename Allocator>
[[nodiscard]] bool erase_stream(Allocator& allocator, const void* p, stream_id stream) noexcept {
  bool found = false;
  allocator.visit_owner(p, [&](auto& in) { found = tessera::detail::drop_use(in, p, stream); });
  return found;
}

}  // namespace tessera::inline v0_1::interop
