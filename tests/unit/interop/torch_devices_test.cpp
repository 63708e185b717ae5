// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cstdint>

#include <gtest/gtest.h>

#include <tessera/interop/torch_devices.hpp>

namespace {

using namespace tessera;

struct device_stats {
  struct one {
    std::int64_t current = 1000, peak = 1000, allocated = 1000, freed = 1000;
  };
  std::array<one, 3> allocation, segment, active, inactive_split, allocated_bytes, reserved_bytes,
      active_bytes, inactive_split_bytes, requested_bytes;
  one oversize_allocations, oversize_segments;
  std::int64_t num_alloc_retries = 1000, num_ooms = 1000, num_sync_all_streams = 1000;
  std::int64_t num_device_alloc = 1000, num_device_free = 1000, num_oom_rejections = 1000;
  std::int64_t max_split_size = 0;
};

/// Statistics whose counters all differ, counted from `first`.
template <std::size_t Pools>
statistics<Pools> distinct_statistics(int first) {
  statistics<Pools> result{};
  const auto fill = [&first](counter& c) {
    c.current = first++;
    c.peak = first++;
    c.allocated = first++;
    c.freed = first++;
  };
  const auto fill_group = [&fill](pool_statistics& group) {
    for (counter* const c :
         {&group.allocation, &group.segment, &group.active, &group.inactive_split, &group.allocated_bytes,
          &group.reserved_bytes, &group.active_bytes, &group.inactive_split_bytes, &group.requested_bytes})
      fill(*c);
  };
  fill_group(result.all);
  for (pool_statistics& pool : result.pool) fill_group(pool);
  fill(result.oversize_allocations);
  fill(result.oversize_segments);
  for (std::uint64_t* const c :
       {&result.num_alloc_retries, &result.num_ooms, &result.num_sync_all_streams, &result.num_device_alloc,
        &result.num_device_free, &result.num_oom_rejections})
    *c = static_cast<std::uint64_t>(first++);
  result.max_split_size = static_cast<std::size_t>(first);
  return result;
}

void expect_sum(const device_stats::one& sum, const counter& part, int at_start = 1000) {
  EXPECT_EQ(sum.current, at_start + part.current);
  EXPECT_EQ(sum.peak, at_start + part.peak);
  EXPECT_EQ(sum.allocated, at_start + part.allocated);
  EXPECT_EQ(sum.freed, at_start + part.freed);
}
void expect_sums(const device_stats& sum, const pool_statistics& part, std::size_t place) {
  expect_sum(sum.allocation[place], part.allocation);
  expect_sum(sum.segment[place], part.segment);
  expect_sum(sum.active[place], part.active);
  expect_sum(sum.inactive_split[place], part.inactive_split);
  expect_sum(sum.allocated_bytes[place], part.allocated_bytes);
  expect_sum(sum.reserved_bytes[place], part.reserved_bytes);
  expect_sum(sum.active_bytes[place], part.active_bytes);
  expect_sum(sum.inactive_split_bytes[place], part.inactive_split_bytes);
  expect_sum(sum.requested_bytes[place], part.requested_bytes);
}

TEST(torch_statistics, adds_each_counter_to_the_member_of_its_name) {
  const auto part = distinct_statistics<2>(1);
  device_stats sum;
  interop::add_torch_statistics(sum, part);
  expect_sums(sum, part.all, 0);
  expect_sums(sum, part.pool[0], 1);
  expect_sums(sum, part.pool[1], 2);
  expect_sum(sum.oversize_allocations, part.oversize_allocations);
  expect_sum(sum.oversize_segments, part.oversize_segments);
  EXPECT_EQ(sum.num_alloc_retries - 1000, static_cast<std::int64_t>(part.num_alloc_retries));
  EXPECT_EQ(sum.num_ooms - 1000, static_cast<std::int64_t>(part.num_ooms));
  EXPECT_EQ(sum.num_sync_all_streams - 1000, static_cast<std::int64_t>(part.num_sync_all_streams));
  EXPECT_EQ(sum.num_device_alloc - 1000, static_cast<std::int64_t>(part.num_device_alloc));
  EXPECT_EQ(sum.num_device_free - 1000, static_cast<std::int64_t>(part.num_device_free));
  EXPECT_EQ(sum.num_oom_rejections - 1000, static_cast<std::int64_t>(part.num_oom_rejections));
  EXPECT_EQ(sum.max_split_size, static_cast<std::int64_t>(part.max_split_size));
}

TEST(torch_statistics, leaves_the_pools_of_other_recipes_as_they_are) {
  const auto part = distinct_statistics<1>(1);
  device_stats sum;
  interop::add_torch_statistics(sum, part);
  expect_sums(sum, part.all, 0);
  expect_sums(sum, pool_statistics{}, 1);
  expect_sums(sum, pool_statistics{}, 2);
}

TEST(torch_statistics, says_minus_one_for_no_split_limit) {
  device_stats sum;
  interop::add_torch_statistics(sum, statistics<2>{});
  EXPECT_EQ(sum.max_split_size, -1);
}

}  // namespace
