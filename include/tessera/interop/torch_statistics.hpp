// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include <tessera/caching_allocator.hpp>
#include <tessera/observe/report.hpp>

/// What an allocator counts, in the structure in which torch_npu asks for it.
namespace tessera {

/// What torch_npu 2.8 calls c10_npu::NPUCachingAllocator::DeviceStats, for who has not its header: the three in a group
/// are all pools, the small and the large one.
struct npu_device_stats {
  using group = std::array<counter, 3>;
  group allocation, segment, active, inactive_split;
  group allocated_bytes, reserved_bytes, active_bytes, inactive_split_bytes, requested_bytes;
  std::int64_t num_alloc_retries = 0;
  std::int64_t num_ooms = 0;
  counter oversize_allocations, oversize_segments;
  std::int64_t max_split_size = 0;
};
static_assert(sizeof(npu_device_stats) == 952 && offsetof(npu_device_stats, num_alloc_retries) == 864);

/// A report in a structure with PyTorch's members; what is counted for small and large pools, where there are two.
template <typename DeviceStats>
[[nodiscard]] DeviceStats to_device_stats(const memory_report& of) {
  DeviceStats made{};
  const auto set = [](auto& to, const counter& from) {
    to.current = from.current;
    to.peak = from.peak;
    to.allocated = from.allocated;
    to.freed = from.freed;
  };
  const auto set_all = [&](auto& to, counter pool_statistics::* from) {
    set(to[0], of.all.*from);
    for (std::size_t in = 0; in < 2; ++in)
      set(to[in + 1], of.pools.size() == 2 ? of.pools[in].*from : counter{});
  };
  set_all(made.allocation, &pool_statistics::allocation);
  set_all(made.segment, &pool_statistics::segment);
  set_all(made.active, &pool_statistics::active);
  set_all(made.inactive_split, &pool_statistics::inactive_split);
  set_all(made.allocated_bytes, &pool_statistics::allocated_bytes);
  set_all(made.reserved_bytes, &pool_statistics::reserved_bytes);
  set_all(made.active_bytes, &pool_statistics::active_bytes);
  set_all(made.inactive_split_bytes, &pool_statistics::inactive_split_bytes);
  set_all(made.requested_bytes, &pool_statistics::requested_bytes);
  set(made.oversize_allocations, of.oversize_allocations);
  set(made.oversize_segments, of.oversize_segments);
  const auto count = [&of](std::string_view name) {
    std::uint64_t found = 0;
    for (const memory_report::count& c : of.counts) {
      if (c.name == name) found = c.value;
    }
    return static_cast<std::int64_t>(found);
  };
  made.num_alloc_retries = count("num_alloc_retries");
  made.num_ooms = count("num_ooms");
  made.max_split_size = of.max_split_size != unlimited ? static_cast<std::int64_t>(of.max_split_size) : -1;
  return made;
}

}  // namespace tessera
