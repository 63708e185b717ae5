// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include <tessera/core/bytes.hpp>

namespace tessera {

/// The current use of an allocator's memory, in bytes. The words are PyTorch's.
struct usage {
  std::size_t requested = 0;  ///< requested by the user, for active blocks
  std::size_t allocated = 0;  ///< in blocks that the user has not freed
  std::size_t active = 0;     ///< in these, and in freed blocks that a stream still uses
  std::size_t cached = 0;     ///< in free blocks
  std::size_t reserved = 0;   ///< acquired from the device: active + cached - unbacked
  std::size_t limit = 0;      ///< bytes that may be reserved
  bool has_limit = true;      ///< whether the user set the limit; otherwise it is the device's capacity
  std::size_t unbacked = 0;   ///< of active and cached bytes: without memory, which an extension gave back
  /// Bytes of freed blocks that a stream still uses.
  [[nodiscard]] constexpr std::size_t pending() const noexcept { return active - allocated; }
  bool operator==(const usage&) const = default;
};

}  // namespace tessera

namespace tessera::detail {

/// Stands for the clock of an allocator that measures the age of idle memory in searches of its pool.
struct pool_searches {};

}  // namespace tessera::detail

namespace tessera {

/// A quantity over time.
struct counter {
  std::int64_t current = 0;
  std::int64_t peak = 0;
  std::int64_t allocated = 0;  ///< sum of all increases
  std::int64_t freed = 0;      ///< sum of all decreases

  constexpr void increase(std::int64_t by) noexcept {
    current += by;
    allocated += by;
    if (current > peak) peak = current;
  }
  constexpr void decrease(std::int64_t by) noexcept {
    current -= by;
    freed += by;
  }
  constexpr void change(std::int64_t by) noexcept { by >= 0 ? increase(by) : decrease(-by); }
  bool operator==(const counter&) const = default;
};

/// The counters of one pool, or of all pools. Counters named `_bytes` are in bytes; the others count blocks
/// or segments.
///   Source:  PyTorch's memory_stats(), names and times of counting
struct pool_statistics {
  counter allocation;       ///< blocks from allocation to the user's free
  counter allocated_bytes;  ///< bytes of these blocks
  counter active;           ///< blocks from allocation until they are no longer pending
  counter active_bytes;
  counter requested_bytes;  ///< requested bytes of active blocks
  counter segment;
  counter reserved_bytes;
  counter inactive_split;  ///< free blocks that share their segment
  counter inactive_split_bytes;
};

/// An allocator's statistics; `num_` values count since the start or the last reset_accumulated_statistics().
template <std::size_t Pools>
struct statistics {
  pool_statistics all;
  std::array<pool_statistics, Pools> pool;
  counter oversize_allocations;
  counter oversize_segments;
  /// Bytes that the device has given and not taken back. Unlike `reserved_bytes`, its peak includes memory
  /// acquired for a failed request, and memory that the device failed to release.
  counter device_bytes;
  counter unbacked_bytes;               ///< bytes of blocks without memory, which an extension gave back
  std::uint64_t num_alloc_retries = 0;  ///< retries of growth after the cache was emptied
  /// Requests that failed, except those above max_request, and those of a pool that serves none because it sleeps.
  std::uint64_t num_ooms = 0;
  /// Of these, requests for which no step of recovery was chosen. Extensions may have made attempts of their own.
  std::uint64_t num_oom_rejections = 0;
  std::uint64_t num_sync_all_streams = 0;  ///< waits for the pending frees of all groups or of one
  std::uint64_t num_device_alloc = 0;      ///< segments acquired; in ranges, times that memory was mapped
  std::uint64_t num_device_free = 0;       ///< segments released; in ranges, times that memory was unmapped
  std::size_t max_split_size = unlimited;  ///< bytes from which a block or segment is oversize
};

}  // namespace tessera
