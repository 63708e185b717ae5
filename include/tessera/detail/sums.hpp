// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include <tessera/caching_allocator.hpp>
#include <tessera/core/statistics.hpp>

/// Sums of what several allocators use and count. The peak of a sum is the sum of the peaks, an upper bound: they need not have
/// been reached at the same time.
namespace tessera::detail {

inline void add_to(usage& sum, const usage& part) noexcept {
  sum.requested += part.requested;
  sum.live += part.live;
  sum.pending += part.pending;
  sum.cached += part.cached;
  sum.reserved += part.reserved;
}

inline void add_to(counter& sum, const counter& part) noexcept {
  sum.current += part.current;
  sum.peak += part.peak;
  sum.allocated += part.allocated;
  sum.freed += part.freed;
}

inline void add_to(pool_statistics& sum, const pool_statistics& part) noexcept {
  for (const pool_counter& c : pool_counters) add_to(sum.*c.of, part.*c.of);
}

template <std::size_t Pools>
void add_to(statistics<Pools>& sum, const statistics<Pools>& part) noexcept {
  add_to(sum.all, part.all);
  for (std::size_t in = 0; in < Pools; ++in) add_to(sum.pool[in], part.pool[in]);
  add_to(sum.oversize_allocations, part.oversize_allocations);
  add_to(sum.oversize_segments, part.oversize_segments);
  add_to(sum.device_bytes, part.device_bytes);
  for (const event_count<Pools>& c : event_counts<Pools>) sum.*c.of += part.*c.of;
  sum.max_split_size = part.max_split_size;
}

}  // namespace tessera::detail
