// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include <tessera/caching_allocator.hpp>
#include <tessera/core/usage.hpp>

/// What several allocators use and count, together. A peak of a sum is the sum of the peaks, which need not have been
/// reached at one time: an upper bound.
namespace tessera {

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
  for (counter pool_statistics::* const c :
       {&pool_statistics::allocation, &pool_statistics::allocated_bytes, &pool_statistics::active,
        &pool_statistics::active_bytes, &pool_statistics::requested_bytes, &pool_statistics::segment,
        &pool_statistics::reserved_bytes, &pool_statistics::inactive_split,
        &pool_statistics::inactive_split_bytes})
    add_to(sum.*c, part.*c);
}

template <std::size_t Pools>
void add_to(statistics<Pools>& sum, const statistics<Pools>& part) noexcept {
  using all = statistics<Pools>;
  add_to(sum.all, part.all);
  for (std::size_t in = 0; in < Pools; ++in) add_to(sum.pool[in], part.pool[in]);
  add_to(sum.oversize_allocations, part.oversize_allocations);
  add_to(sum.oversize_segments, part.oversize_segments);
  for (std::uint64_t all::* const n :
       {&all::num_alloc_retries, &all::num_ooms, &all::num_oom_rejections, &all::num_sync_all_streams,
        &all::num_device_alloc, &all::num_device_free})
    sum.*n += part.*n;
}

}  // namespace tessera
