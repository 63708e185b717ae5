// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include <tessera/core/fraction.hpp>

namespace tessera {

/// How large the chunks are that a pool is cut from: so many bytes, or where that is 0, a share of what can be had.
///   Source:  Paddle's initial_ and reallocate_gpu_memory_in_mb and fraction_of_gpu_memory_to_use
struct chunk_plan {
  std::size_t first = 0;    ///< bytes of the first chunk
  std::size_t further = 0;  ///< bytes of each other one
  fraction share = percent(92);

  /// What can be had where `free` bytes are free: a twentieth stays, and so does what is too little.
  [[nodiscard]] static constexpr std::size_t available(std::size_t free) noexcept {
    const std::size_t rest = free - free / 20;
    return rest < 256 ? 0 : rest;
  }
  [[nodiscard]] constexpr std::size_t first_chunk(std::size_t free) const noexcept {
    return first > 0 ? first : share.of(available(free));
  }
  [[nodiscard]] constexpr std::size_t further_chunk(std::size_t free) const noexcept {
    return further > 0 ? further : share.of(available(free));
  }
  /// The most that is cut from chunks, on a device on which `all` bytes are free at first; what is larger is direct: it
  /// has a segment of its own, which goes straight back.
  [[nodiscard]] constexpr std::size_t largest_pooled(std::size_t all) const noexcept {
    const std::size_t one = first_chunk(all);
    const std::size_t other = further_chunk(all);
    return one > other ? one : other;
  }
  /// The next chunk for a block of at most largest_pooled() bytes, or where that is more than can be had, something that
  /// the device has not got either.
  [[nodiscard]] constexpr std::size_t next(std::size_t free, bool is_first) const noexcept {
    const std::size_t chunk = is_first ? first_chunk(free) : further_chunk(free);
    if (available(free) > 0 && chunk <= available(free)) return chunk;
    return chunk > free ? chunk : free + 1;
  }
  bool operator==(const chunk_plan&) const = default;
};

}  // namespace tessera
