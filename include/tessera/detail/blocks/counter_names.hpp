// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include <tessera/core/statistics.hpp>

/// The counters of statistics with their names, for reports and sums.

namespace tessera {

/// Adds the bytes of another allocator with the same limit.
inline usage& operator+=(usage& sum, const usage& part) noexcept {
  sum.requested += part.requested;
  sum.allocated += part.allocated;
  sum.active += part.active;
  sum.cached += part.cached;
  sum.reserved += part.reserved;
  sum.unbacked += part.unbacked;
  return sum;
}

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
