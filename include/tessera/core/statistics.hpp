// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include <tessera/core/bytes.hpp>

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

/// What is counted for each pool and over all; `_bytes` in bytes, the others in pieces.
///   Source:  the names and the moments of counting are those of PyTorch's memory_stats()
struct pool_statistics {
  counter allocation;       ///< blocks handed out, until the user frees them
  counter allocated_bytes;  ///< of their whole blocks
  counter active;           ///< the same, until no stream uses them any more
  counter active_bytes;
  counter requested_bytes;  ///< as asked for, until no stream uses them any more
  counter segment;
  counter reserved_bytes;
  counter inactive_split;  ///< free blocks that share their segment
  counter inactive_split_bytes;
};
struct pool_counter {
  const char* name;
  counter pool_statistics::* of;
};
inline constexpr pool_counter pool_counters[] = {
    {"allocation", &pool_statistics::allocation},
    {"allocated_bytes", &pool_statistics::allocated_bytes},
    {"active", &pool_statistics::active},
    {"active_bytes", &pool_statistics::active_bytes},
    {"requested_bytes", &pool_statistics::requested_bytes},
    {"segment", &pool_statistics::segment},
    {"reserved_bytes", &pool_statistics::reserved_bytes},
    {"inactive_split", &pool_statistics::inactive_split},
    {"inactive_split_bytes", &pool_statistics::inactive_split_bytes},
};

/// An allocator's statistics; `num_` values count since the start or the last reset_accumulated_statistics().
template <std::size_t Pools>
struct statistics {
  pool_statistics all;
  std::array<pool_statistics, Pools> pool;
  counter oversize_allocations;
  counter oversize_segments;
  /// Bytes that the device has given and not taken back. Its peak is what the device gave at most: memory counts that came
  /// in vain, as more was refused, and memory that the device failed to take back. `reserved_bytes` leaves both out.
  counter device_bytes;
  std::uint64_t num_alloc_retries = 0;     ///< times growth was tried again with an empty cache
  std::uint64_t num_ooms = 0;              ///< requests that failed, except those above max_request
  std::uint64_t num_oom_rejections = 0;    ///< of them, without any recovery tried
  std::uint64_t num_sync_all_streams = 0;  ///< waits for all pending frees
  std::uint64_t num_device_alloc = 0;      ///< segments the device gave
  std::uint64_t num_device_free = 0;       ///< segments it took back
  std::size_t max_split_size = unlimited;  ///< bytes from which on a block or segment is oversize
};
template <std::size_t Pools>
struct event_count {
  const char* name;
  std::uint64_t statistics<Pools>::* of;
};
template <std::size_t Pools>
inline constexpr event_count<Pools> event_counts[] = {
    {"num_alloc_retries", &statistics<Pools>::num_alloc_retries},
    {"num_ooms", &statistics<Pools>::num_ooms},
    {"num_oom_rejections", &statistics<Pools>::num_oom_rejections},
    {"num_sync_all_streams", &statistics<Pools>::num_sync_all_streams},
    {"num_device_alloc", &statistics<Pools>::num_device_alloc},
    {"num_device_free", &statistics<Pools>::num_device_free},
};

}  // namespace tessera
