// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>

#include <tessera/core/stream.hpp>

namespace tessera {

/// An action of an allocator, reported to its observer in order.
struct allocator_event {
  /// PyTorch's trace actions, and actions for ranges and refusals.
  enum class action : unsigned char {
    alloc,           ///< a block was allocated
    free_requested,  ///< the user freed a block
    free_completed,  ///< no stream uses a freed block any more
    segment_alloc,   ///< a segment was acquired
    segment_free,    ///< a segment was released
    segment_map,     ///< `bytes` of physical memory were mapped into a range
    segment_unmap,   ///< `bytes` were unmapped
    sleep,           ///< `bytes` under live blocks went back to the device; their pool sleeps
    wake,            ///< `bytes` came back at their addresses
    range_reserve,   ///< a range of addresses was reserved
    range_release,   ///< a range was released
    refused,         ///< the device refused `bytes`, host memory for metadata ran out, or the pool sleeps
    oom,             ///< a request failed, after the steps of recovery if there are any
    snapshot         ///< a tool took a snapshot, with `bytes` in use
  };
  action what;
  std::uintptr_t address = 0;  ///< for oom: free bytes of the device
  std::size_t bytes = 0;       ///< requested bytes, or bytes of the segment
  std::size_t block = 0;       ///< bytes of the block that serves the request
  stream_id stream{};          ///< stream of the request; without a request, the key of the blocks
  pool_id private_pool{};      ///< the pool of the memory or of the request
};

/// Receives every allocator_event, for extension::observer [tessera/extension/observer.hpp].
///
/// `on` runs in the middle of a change, with the allocator's lock held if there is one. If it allocates or
/// frees in that allocator, the program aborts.
template <typename S>
concept allocator_observer = std::movable<S> && requires(S& observer, const allocator_event& event) {
  { observer.on(event) } noexcept;
};

}  // namespace tessera
