// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>

#include <tessera/core/stream.hpp>

namespace tessera {

/// Something an allocator did, told in the order of happening.
struct allocator_event {
  /// The names are PyTorch's trace actions, plus the device's refusals and ranges.
  enum class action : unsigned char {
    alloc,           ///< a block was handed out
    free_requested,  ///< the user gave it back
    free_completed,  ///< no stream uses it any more
    segment_alloc,   ///< the device gave a segment
    segment_free,    ///< the device took it back
    segment_map,     ///< physical memory was mapped into a range, `bytes` of it
    segment_unmap,   ///< and taken away from there
    range_reserve,   ///< the device gave a range of addresses
    range_release,   ///< and took it back
    refused,         ///< the device did not give `bytes`, or host memory to describe them ran out
    oom,             ///< nothing helped
    snapshot         ///< a tool looked at all that is there, `bytes` of it in use
  };
  action what;
  std::uintptr_t address = 0;  ///< where nothing helped: bytes that the device has left
  std::size_t bytes = 0;       ///< as requested by the user, or of the segment
  std::size_t block = 0;       ///< of the block that serves it
  stream_id stream{};  ///< of the request; where nobody requests, the key under which the block is shared
};

/// Learns of each allocator_event, in the middle of the change and with the lock of the allocator held that has one: it must
/// not use that allocator, and where it allocates or frees there, the program ends.
///
///     struct count_segments {
///       std::size_t count = 0;
///       void on(const tessera::allocator_event& e) noexcept {
///         count += e.what == tessera::allocator_event::action::segment_alloc;
///       }
///     };
///     tessera::caching_allocator<tessera::pytorch<>, tessera::simulated_device, count_segments> watched;
///     watched.deallocate(watched.allocate(5_MiB));
///     std::printf("%zu segments taken\n", watched.observer().count);
template <typename S>
concept event_observer = std::movable<S> && requires(S& observer, const allocator_event& event) {
  { observer.on(event) } noexcept;
};

/// The sink of an allocator that nobody listens to; costs nothing.
struct ignore_events {
  static constexpr void on(const allocator_event&) noexcept {}
};

/// Whether a sink is more than that.
template <event_observer Observer>
inline constexpr bool is_heard = !std::derived_from<Observer, ignore_events>;

}  // namespace tessera
