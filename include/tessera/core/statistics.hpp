// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include <tessera/core/bytes.hpp>
#include <tessera/core/stream.hpp>

namespace tessera {

/// The current use of an allocator's memory, in bytes.
struct usage {
  std::size_t requested = 0;  ///< requested by the user, for live and pending blocks
  std::size_t live = 0;       ///< in allocated blocks that the user has not freed
  std::size_t pending = 0;    ///< in freed blocks that a stream still uses
  std::size_t cached = 0;     ///< in free blocks
  std::size_t reserved = 0;   ///< acquired from the device: live + pending + cached - asleep
  std::size_t limit = 0;      ///< bytes that may be reserved
  bool has_limit = true;      ///< whether the user set the limit; otherwise it is the device's capacity
  std::size_t asleep = 0;  ///< of live, pending and cached bytes: without memory, because their pool sleeps
  bool operator==(const usage&) const = default;
  /// Adds the bytes of another allocator with the same limit.
  usage& operator+=(const usage& other) noexcept {
    requested += other.requested;
    live += other.live;
    pending += other.pending;
    cached += other.cached;
    reserved += other.reserved;
    asleep += other.asleep;
    return *this;
  }
};

}  // namespace tessera

namespace tessera::detail {

/// Adds the memory of a plan, which was taken from the same device. A limit of the user does not count it.
/// Lowers `available`, the bytes left on the device, if these are computed from `now`.
inline void add_plan_bytes(usage& now, const usage& plan, std::size_t capacity,
                           std::size_t& available) noexcept {
  now += plan;
  if (now.has_limit) now.limit = capacity - now.limit > plan.reserved ? now.limit + plan.reserved : capacity;
  const std::size_t left = capacity > now.reserved ? capacity - now.reserved : 0;
  if (left < available) available = left;
}

}  // namespace tessera::detail

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

}  // namespace tessera

namespace tessera::detail {

/// A counter of pool_statistics and its name.
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

}  // namespace tessera::detail

namespace tessera {

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
  counter asleep_bytes;                    ///< bytes of blocks without memory, because their pool sleeps
  std::uint64_t num_alloc_retries = 0;     ///< retries of growth after the cache was emptied
  std::uint64_t num_ooms = 0;              ///< requests that failed, except those above max_request
  std::uint64_t num_oom_rejections = 0;    ///< of these, requests that failed without recovery
  std::uint64_t num_sync_all_streams = 0;  ///< waits for all pending frees
  std::uint64_t num_device_alloc = 0;      ///< segments acquired
  std::uint64_t num_device_free = 0;       ///< segments released
  std::size_t max_split_size = unlimited;  ///< bytes from which a block or segment is oversize
};

}  // namespace tessera

namespace tessera::detail {

/// A `num_` value of statistics and its name.
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

}  // namespace tessera::detail

namespace tessera {

/// The requests and bytes that a plan served.
struct plan_usage {
  std::uint64_t requests = 0;            ///< requests served by the plan
  std::uint64_t bytes = 0;               ///< their bytes
  std::uint64_t unplanned_requests = 0;  ///< requests that the allocator inside served, or that failed
  std::uint64_t unplanned_bytes = 0;     ///< their bytes
  std::uint64_t occupied = 0;            ///< of these, planned requests whose place was still in use
  counter device_bytes;                  ///< bytes of the device behind the plan's places
  std::size_t plan_bytes = 0;            ///< bytes of all places
  std::uint64_t fingerprint = 0;         ///< of the recorded program
  const char* fault = nullptr;           ///< the rule that the plan breaks; then it serves nothing
  bool is_aside = false;                 ///< whether the plan serves nothing, because the program has left it

  /// The least requests of the window by which is_stale() judges.
  static constexpr std::uint64_t recent_window = 1000;
  std::uint64_t recent_requests = 0;            ///< of the last window, the requests that the plan served
  std::uint64_t recent_unplanned_requests = 0;  ///< of the last window, the others

  /// Whether the program differs from the recorded one: of the last window of at least 1,000 requests, the plan
  /// served less than half.
  [[nodiscard]] bool is_stale() const noexcept {
    return recent_requests + recent_unplanned_requests >= recent_window &&
           recent_requests < recent_unplanned_requests;
  }
};

/// A contiguous part of an allocator's memory, for tools. It is a segment, or adjacent mapped pages of a
/// range of addresses.
struct segment_view {
  std::uintptr_t address = 0;
  std::size_t bytes = 0;
  stream_id stream{};      ///< the key of its blocks
  std::size_t pool = 0;    ///< the number of its pool
  bool in_range = false;   ///< whether it is part of a range
  pool_id private_pool{};  ///< the private pool that owns it, or none
  bool is_asleep = false;  ///< whether its pool sleeps; then its memory has gone back to the device
};

/// A block of a segment_view. In the order of addresses, the blocks cover the whole segment_view.
struct block_view {
  enum class state : unsigned char {
    free,
    live,
    pending  ///< freed, but a stream still uses it
  };
  std::uintptr_t address = 0;
  std::size_t bytes = 0;
  std::size_t requested = 0;  ///< requested bytes; 0 while free
  state is = state::free;
  stream_id stream{};  ///< the key of the free list that it is in or will join
};

}  // namespace tessera
