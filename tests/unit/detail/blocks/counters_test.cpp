// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/core/types.hpp>
#include <tessera/detail/blocks/counters.hpp>
#include <tessera/extension/count_totals.hpp>

namespace {

using namespace tessera;
using tessera::detail::full_counters;
using tessera::detail::usage_counters;

constexpr std::size_t pools = 2;

/// Counts each quantity when it changes, for the pool and for all.
struct plain_counters {
  std::array<pool_statistics, pools + 1> of{};

  void change(std::size_t in, counter pool_statistics::* what, std::int64_t by) {
    for (const std::size_t who : {in, pools}) (of[who].*what).change(by);
  }
  void hand_out(std::size_t in, std::int64_t requested, std::int64_t block) {
    change(in, &pool_statistics::allocation, 1);
    change(in, &pool_statistics::allocated_bytes, block);
    change(in, &pool_statistics::active, 1);
    change(in, &pool_statistics::active_bytes, block);
    change(in, &pool_statistics::requested_bytes, requested);
  }
  void leave(std::size_t in, std::int64_t block) {
    change(in, &pool_statistics::allocation, -1);
    change(in, &pool_statistics::allocated_bytes, -block);
  }
  void end(std::size_t in, std::int64_t requested, std::int64_t block) {
    change(in, &pool_statistics::active, -1);
    change(in, &pool_statistics::active_bytes, -block);
    change(in, &pool_statistics::requested_bytes, -requested);
  }
  void split(std::size_t in, std::int64_t count, std::int64_t bytes) {
    change(in, &pool_statistics::inactive_split, count);
    change(in, &pool_statistics::inactive_split_bytes, bytes);
  }
  void segment(std::size_t in, std::int64_t count, std::int64_t bytes) {
    change(in, &pool_statistics::segment, count);
    change(in, &pool_statistics::reserved_bytes, bytes);
  }
  void reset_peak() {
    for (pool_statistics& s : of)
      for (const detail::pool_counter& c : detail::pool_counters) (s.*c.of).peak = (s.*c.of).current;
  }
  void reset_accumulated() {
    for (pool_statistics& s : of)
      for (const detail::pool_counter& c : detail::pool_counters) (s.*c.of).allocated = (s.*c.of).freed = 0;
  }
};

void expect_same(const pool_statistics& found, const pool_statistics& expected, int step) {
  for (const detail::pool_counter& c : detail::pool_counters) {
    const counter &a = found.*c.of, &b = expected.*c.of;
    ASSERT_EQ(a.current, b.current) << c.name << ", step " << step;
    ASSERT_EQ(a.peak, b.peak) << c.name << ", step " << step;
    ASSERT_EQ(a.allocated, b.allocated) << c.name << ", step " << step;
    ASSERT_EQ(a.freed, b.freed) << c.name << ", step " << step;
  }
}

struct held {
  std::size_t in, requested, block;
};
held take_any(std::vector<held>& from, std::mt19937_64& random) {
  const std::size_t at = random() % from.size();
  const held taken = from[at];
  from[at] = from.back();
  from.pop_back();
  return taken;
}
std::int64_t number(std::size_t n) { return static_cast<std::int64_t>(n); }

TEST(full_counters, equals_the_count_of_every_change) {
  std::mt19937_64 random(3);
  full_counters<pools> counters;
  usage_counters sums;
  plain_counters plain;
  std::vector<held> live, pending;
  std::array<std::size_t, pools> splits{}, segments{};
  for (int step = 0; step < 20000; ++step) {
    const std::size_t in = random() % pools;
    const std::size_t block = 512 * (1 + random() % 100);
    const std::size_t requested = block - random() % 512;
    switch (random() % 14) {
      case 0:
      case 1:
        counters.allocated(in, requested, block);
        sums.allocated(in, requested, block);
        plain.hand_out(in, number(requested), number(block));
        live.push_back({in, requested, block});
        break;
      case 2:
        if (live.empty()) break;
        {
          const held b = take_any(live, random);
          counters.freed(b.in, b.requested, b.block);
          sums.freed(b.in, b.requested, b.block);
          plain.leave(b.in, number(b.block));
          plain.end(b.in, number(b.requested), number(b.block));
        }
        break;
      case 3:
        if (live.empty() || step % 5000 < 2500) break;  // for a long time nothing is reserved
        {
          const held b = take_any(live, random);
          counters.free_deferred(b.in, b.block);
          sums.free_deferred(b.in, b.block);
          plain.leave(b.in, number(b.block));
          pending.push_back(b);
        }
        break;
      case 4:
        if (pending.empty()) break;
        {
          const held b = take_any(pending, random);
          counters.free_completed(b.in, b.requested, b.block);
          sums.free_completed(b.in, b.requested, b.block);
          plain.end(b.in, number(b.requested), number(b.block));
        }
        break;
      case 5:
        counters.allocated(in, requested, block);
        counters.freed(in, requested, block);
        sums.allocated(in, requested, block);
        sums.freed(in, requested, block);
        plain.hand_out(in, number(requested), number(block));
        plain.leave(in, number(block));
        plain.end(in, number(requested), number(block));
        break;
      case 6:
        counters.inactive_split_grew(in, 1, 2 * block);
        plain.split(in, 1, number(2 * block));
        splits[in] += 2 * block;
        break;
      case 7:
        if (splits[in] < 512) break;
        counters.inactive_split_grew(in, -1, 512);  // fewer blocks, with more bytes: two were coalesced
        plain.split(in, -1, 512);
        splits[in] += 512;
        break;
      case 8:
        if (splits[in] < 512) break;
        counters.inactive_split_shrank(in, 1, 512);
        plain.split(in, -1, -512);
        splits[in] -= 512;
        break;
      case 9:
        if (splits[in] < 512) break;
        counters.inactive_split_shrank(in, 1, 512);
        counters.inactive_split_grew(in, 1, 512);
        plain.split(in, -1, -512);
        plain.split(in, 1, 512);
        break;
      case 10:
        counters.inactive_split_grew(in, 1, block);
        counters.inactive_split_shrank(in, 1, block);
        plain.split(in, 1, number(block));
        plain.split(in, -1, -number(block));
        break;
      case 11:
        counters.segment_acquired(in, 100 * block);
        sums.segment_acquired(in, 100 * block);
        plain.segment(in, 1, number(100 * block));
        segments[in] += 100 * block;
        break;
      case 12:
        if (segments[in] < 1024) break;
        counters.segment_released(in, 1024);
        sums.segment_released(in, 1024);
        plain.segment(in, -1, -1024);
        segments[in] -= 1024;
        break;
      default:
        if (step % 40 == 0) counters.reset_peak(), plain.reset_peak();
        if (step % 40 == 1) counters.reset_accumulated(), plain.reset_accumulated();
    }
    if (step % 7 == 0) {
      const statistics<pools> report = counters.report(unlimited);
      for (std::size_t p = 0; p < pools; ++p)
        ASSERT_NO_FATAL_FAILURE(expect_same(report.pool[p], plain.of[p], step));
      ASSERT_NO_FATAL_FAILURE(expect_same(report.all, plain.of[pools], step));
      const usage now = counters.current_usage();
      const pool_statistics& all = plain.of[pools];
      ASSERT_EQ(number(now.allocated), all.allocated_bytes.current);
      ASSERT_EQ(number(now.pending()), all.active_bytes.current - all.allocated_bytes.current);
      ASSERT_EQ(number(now.requested), all.requested_bytes.current);
      ASSERT_EQ(number(now.reserved), all.reserved_bytes.current);
      ASSERT_EQ(number(counters.reserved()), all.reserved_bytes.current);
      ASSERT_EQ(number(now.cached), all.reserved_bytes.current - all.active_bytes.current);
      ASSERT_EQ(sums.current_usage(), now);
      ASSERT_EQ(sums.reserved(), now.reserved);
    }
  }
}

// Temporary changes may set a peak of the number without one of the bytes, and vice versa.
TEST(full_counters, raises_a_peak_of_either_quantity) {
  full_counters<1> counters;
  counters.inactive_split_grew(0, 2, 4096);
  counters.inactive_split_shrank(0, 0, 2048);
  counters.inactive_split_grew(0, 1, 512);
  counters.inactive_split_shrank(0, 1, 512);
  EXPECT_EQ(counters.report(0).all.inactive_split, (counter{2, 3, 3, 1}));
  EXPECT_EQ(counters.report(0).all.inactive_split_bytes, (counter{2048, 4096, 4608, 2560}));
  counters.inactive_split_shrank(0, 2, 0);
  counters.inactive_split_grew(0, 1, 8192);
  counters.inactive_split_shrank(0, 1, 8192);
  EXPECT_EQ(counters.report(0).all.inactive_split, (counter{0, 3, 4, 4}));
  EXPECT_EQ(counters.report(0).all.inactive_split_bytes.peak, 10240);
  counters.allocated(0, 100, 4096);
  counters.freed(0, 100, 4096);
  counters.allocated(0, 200, 512);
  counters.freed(0, 200, 512);
  EXPECT_EQ(counters.report(0).all.requested_bytes, (counter{0, 200, 300, 300}));
  EXPECT_EQ(counters.report(0).all.allocated_bytes, (counter{0, 4096, 4608, 4608}));
}

// Memory that is mapped and unmapped is counted when it is created and destroyed.
TEST(full_counters, counts_the_bytes_of_the_device) {
  full_counters<1> counters;
  counters.segment_acquired(0, 2048);
  counters.mapped(0, 1024);
  counters.unmapped(0, 512);
  counters.segment_released(0, 512);
  EXPECT_EQ(counters.report(0).device_bytes, (counter{1536, 2048, 2048, 512}));
  counters.segment_rejected(4096, true);
  EXPECT_EQ(counters.report(0).device_bytes, (counter{1536, 5632, 6144, 4608}));
  counters.segment_rejected(1024, false);
  EXPECT_EQ(counters.report(0).device_bytes, (counter{2560, 5632, 7168, 4608}));
  EXPECT_EQ(counters.report(0).all.reserved_bytes.peak, 3072);
  counters.reset_peak(), counters.reset_accumulated();
  EXPECT_EQ(counters.report(0).device_bytes, (counter{2560, 2560, 0, 0}));
}

TEST(full_counters, counts_device_calls_until_it_is_reset) {
  full_counters<1> counters;
  counters.segment_acquired(0, 2048);
  counters.mapped(0, 1024);
  counters.unmapped(0, 512);
  counters.segment_released(0, 512);
  counters.unmapped(0, 512);
  ++counters.num_alloc_retries;
  counters.num_ooms = 5;
  counters.num_oom_rejections = 4;
  counters.num_sync_all_streams = 3;
  counters.oversize_allocations.increase(2);
  counters.oversize_allocations.decrease(1);
  counters.oversize_segments.increase(4);
  counters.oversize_segments.decrease(1);
  statistics<1> report = counters.report(77);
  EXPECT_EQ(report.max_split_size, 77u);
  EXPECT_EQ(report.num_device_alloc, 2u);
  EXPECT_EQ(report.num_device_free, 3u);
  EXPECT_EQ(report.num_alloc_retries, 1u);
  EXPECT_EQ(report.num_ooms, 5u);
  EXPECT_EQ(report.num_oom_rejections, 4u);
  EXPECT_EQ(report.num_sync_all_streams, 3u);
  EXPECT_EQ(report.all.segment.current, 0);  // ranges do not count as segments
  EXPECT_EQ(report.all.reserved_bytes.current, 1536);
  EXPECT_EQ(report.oversize_allocations, (counter{1, 2, 2, 1}));
  EXPECT_EQ(report.oversize_segments, (counter{3, 4, 4, 1}));
  counters.reset_peak();
  report = counters.report(77);
  EXPECT_EQ(report.oversize_allocations, (counter{1, 1, 2, 1}));
  EXPECT_EQ(report.oversize_segments, (counter{3, 3, 4, 1}));
  counters.reset_accumulated();
  report = counters.report(77);
  EXPECT_EQ(report.oversize_allocations, (counter{1, 1, 0, 0}));
  EXPECT_EQ(report.oversize_segments, (counter{3, 3, 0, 0}));
  EXPECT_EQ(report.num_device_alloc + report.num_device_free + report.num_alloc_retries + report.num_ooms +
                report.num_oom_rejections + report.num_sync_all_streams,
            0u);
}

}  // namespace
