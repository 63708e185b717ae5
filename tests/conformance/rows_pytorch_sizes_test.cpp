// SPDX-License-Identifier: Apache-2.0
// Rows 1 to 42 about PyTorch's allocator: the sizes of blocks and segments. The names of the tests have the
// numbers of the rows.
#include <cstddef>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

#include "extensions.hpp"
#include "rows.hpp"

namespace {

using namespace tessera;
using namespace conformance;
using action = allocator_event::action;

constexpr bool small = true, large = false;

TEST(torch_row, n001_no_bytes_are_null_and_count_nothing) {
  native pool;
  EXPECT_EQ(pool.allocate(0), nullptr);
  EXPECT_TRUE(observer_of(pool).events.empty());
  EXPECT_EQ(pool.provider().calls().acquire, 0u);
  EXPECT_EQ(pool.statistics().all.allocation, counter{});
  EXPECT_EQ(reserved(pool), 0u);
}
TEST(torch_row, n002_one_byte_takes_512_of_a_small_segment) {
  native pool;
  EXPECT_EQ(first(1, pool), (service{512, 2_MiB, small}));
  EXPECT_EQ(pool.statistics().all.allocated_bytes.current, 512);
  EXPECT_EQ(pool.statistics().all.requested_bytes.current, 1);
}
TEST(torch_row, n003_480_bytes_take_512) { EXPECT_EQ(first(480), (service{512, 2_MiB, small})); }
TEST(torch_row, n004_cuda_481_and_512_bytes_take_512) {
  EXPECT_EQ(first(481), (service{512, 2_MiB, small}));
  EXPECT_EQ(first(512), (service{512, 2_MiB, small}));
}
TEST(torch_row, n005_513_bytes_take_1024) { EXPECT_EQ(first(513), (service{1024, 2_MiB, small})); }
TEST(torch_row, n006_1025_bytes_take_1536) { EXPECT_EQ(first(1025), (service{1536, 2_MiB, small})); }
TEST(torch_row, n007_cuda_256_floats_are_active_as_1024_bytes_and_freed_as_1024) {
  native pool;
  void* const p = pool.allocate(256 * sizeof(float));
  EXPECT_EQ(pool.statistics().all.active_bytes.current, 1024);
  pool.deallocate(p);
  pool.trim();
  EXPECT_EQ(pool.statistics().all.active_bytes.freed, 1024);
  EXPECT_EQ(pool.statistics().all.active_bytes.current, 0);
}
TEST(torch_row, n008_32_bytes_below_1M_are_small) {
  EXPECT_EQ(first(1_MiB - 32), (service{1_MiB, 2_MiB, small}));
}
TEST(torch_row, n009_cuda_31_bytes_below_1M_are_small_too) {
  EXPECT_EQ(first(1_MiB - 31), (service{1_MiB, 2_MiB, small}));
}
TEST(torch_row, n010_cuda_1M_is_small_and_reserves_2M) {
  EXPECT_EQ(first(1_MiB), (service{1_MiB, 2_MiB, small}));
}
TEST(torch_row, n011_a_byte_above_1M_is_large_and_reserves_20M) {
  EXPECT_EQ(first(1_MiB + 1), (service{1_MiB + 512, 20_MiB, large}));
}
TEST(torch_row, n012_cuda_three_times_1M_take_1_1_and_2_segments) {
  native pool;
  std::vector<std::size_t> counts;
  for (int i = 0; i < 3; ++i) {
    (void)pool.allocate(1_MiB);
    counts.push_back(segments(pool));
  }
  EXPECT_EQ(counts, (std::vector<std::size_t>{1, 1, 2}));
}
TEST(torch_row, n013_cuda_request_5M_leaves_15M) {
  native pool;
  EXPECT_EQ(first(5_MiB, pool), (service{5_MiB, 20_MiB, large}));
  EXPECT_EQ(pool.current_usage().cached, 15_MiB);
  EXPECT_EQ(split_off(pool), (parts{1, 15_MiB}));
}
TEST(torch_row, n014_cuda_512_bytes_below_10M_reserve_20M) {
  EXPECT_EQ(first(10_MiB - 512), (service{10_MiB - 512, 20_MiB, large}));
}
TEST(torch_row, n015_cuda_544_bytes_below_10M_reserve_20M) {
  EXPECT_EQ(first(10_MiB - 544), (service{10_MiB - 512, 20_MiB, large}));
}
TEST(torch_row, n016_cuda_10M_are_one_block_of_their_own) {
  native pool;
  EXPECT_EQ(first(10_MiB, pool), (service{10_MiB, 10_MiB, large}));
  EXPECT_EQ(split_off(pool), parts{});
}
TEST(torch_row, n017_a_byte_above_10M_splits_12M) {
  native pool;
  EXPECT_EQ(first(10_MiB + 1, pool), (service{10_MiB + 512, 12_MiB, large}));
  EXPECT_EQ(split_off(pool), (parts{1, 2_MiB - 512}));
}
TEST(torch_row, n018_19M_take_20M_whole_because_a_rest_of_1M_is_not_split_off) {
  native pool;
  EXPECT_EQ(first(19_MiB, pool), (service{20_MiB, 20_MiB, large}));
  EXPECT_EQ(split_off(pool), parts{});
}
TEST(torch_row, n019_cuda_18M_and_a_half_leave_1M_and_a_half) {
  native pool;
  EXPECT_EQ(first(18_MiB + 512_KiB, pool), (service{18_MiB + 512_KiB, 20_MiB, large}));
  EXPECT_EQ(split_off(pool), (parts{1, 1_MiB + 512_KiB}));
}
TEST(torch_row, n020_33M_take_34M_whole) { EXPECT_EQ(first(33_MiB), (service{34_MiB, 34_MiB, large})); }
TEST(torch_row, n021_cuda_40M_floats_take_160M) {
  EXPECT_EQ(first(40_MiB * sizeof(float)), (service{160_MiB, 160_MiB, large}));
}
TEST(torch_row, n022_cuda_63M_and_a_half_take_a_cached_block_of_64M_whole) {
  native pool;
  void* const p = pool.allocate(64_MiB);
  pool.deallocate(p);
  EXPECT_EQ(pool.allocate(63_MiB + 512_KiB), p);
  EXPECT_EQ(live(pool), 64_MiB);
  EXPECT_EQ(reserved(pool), 64_MiB);
  EXPECT_EQ(split_off(pool), parts{});
}
TEST(torch_row, n023_a_freed_block_merges_with_the_rest) {
  native pool;
  void* const p = pool.allocate(5_MiB);
  pool.deallocate(p);
  EXPECT_EQ(split_off(pool), parts{});
  EXPECT_EQ(pool.allocate(20_MiB), p) << "one block of 20 MiB";
  EXPECT_EQ(reserved(pool), 20_MiB);
}
TEST(torch_row, n024_emptying_the_cache_releases_all_at_the_end_of_the_trace) {
  native pool;
  pool.deallocate(pool.allocate(5_MiB));
  pool.trim();
  EXPECT_EQ(reserved(pool), 0u);
  EXPECT_EQ(pool.provider().used(), 0u);
  EXPECT_EQ(observer_of(pool).events.back().what, action::segment_free);
  EXPECT_EQ(observer_of(pool).events.back().bytes, 20_MiB);
}
TEST(torch_row, n025_a_segment_with_a_live_block_stays) {
  native pool;
  void* const kept = pool.allocate(1_KiB);
  pool.deallocate(pool.allocate(2_KiB));
  pool.trim();
  EXPECT_EQ(reserved(pool), 2_MiB);
  pool.deallocate(kept);
}
TEST(torch_row, n026_800000000_GiB_are_out_of_memory_with_this_message) {
  native pool;
  try {
    (void)pool.allocate(800'000'000_GiB);
    FAIL() << "that much was there";
  } catch (const out_of_memory& error) {
    EXPECT_EQ(error.requested(), 800'000'000_GiB);
    EXPECT_NE(std::string_view(error.what()).find("(858993459200000000 bytes) requested"),
              std::string_view::npos)
        << error.what();
  }
  EXPECT_GT(pool.provider().calls().refused, 0u);
}
TEST(torch_row, n027_1_EiB_and_more_are_refused_without_a_device_call) {
  native pool;
  EXPECT_THROW((void)pool.allocate(std::size_t{1} << 60), out_of_memory);
  EXPECT_THROW((void)pool.allocate(~std::size_t{0}), out_of_memory);
  EXPECT_EQ(pool.provider().calls().acquire, 0u);
  EXPECT_EQ(pool.statistics().num_ooms, 0u);
}

/// The block that serves a request under a setting, and the reserved bytes.
service under(std::string_view setting, std::size_t bytes) {
  return first(bytes, native{simulated_device{}, pytorch_family::native::configured(said(setting))});
}
std::size_t block(std::string_view setting, std::size_t bytes) { return under(setting, bytes).block; }
divisions table(std::string_view setting) { return said(setting).roundup; }
std::uint32_t at_mib(const divisions& d, std::size_t mib) { return d.of(mib << 20); }

constexpr std::string_view by_4 = "roundup_power2_divisions:4";
constexpr std::string_view by_list = "roundup_power2_divisions:[64:8,128:2,256:2,512:2,1024:1,>:1]";
constexpr std::string_view with_gap = "roundup_power2_divisions:[8:1,64:4,128:8,256:2,>:16]";

TEST(torch_row, n028_84M_in_quarters_are_96M) { EXPECT_EQ(block(by_4, 84_MiB), 96_MiB); }
TEST(torch_row, n029_84M_in_eighths_are_88M) { EXPECT_EQ(block(by_list, 84_MiB), 88_MiB); }
TEST(torch_row, n030_400M_in_halves_are_512M) { EXPECT_EQ(block(by_list, 400_MiB), 512_MiB); }
TEST(torch_row, n031_settings_read_again_without_the_key_round_no_more) {
  native pool{simulated_device{}, pytorch_family::native::configured(said(by_4))};
  pool.policies() = pytorch_family::native::configured(said("max_split_size_mb:1024"));
  EXPECT_EQ(first(84_MiB, pool), (service{84_MiB, 84_MiB, large}));
}
TEST(torch_row, n032_a_list_fills_16_slots) {
  const divisions expected{{1, 1, 1, 1, 0, 0, 4, 8, 2, 16, 16, 16, 16, 16, 16, 16}};
  EXPECT_EQ(table(with_gap), expected);
}
TEST(torch_row, n033_sizes_in_the_slots_of_that_list) {
  EXPECT_EQ(block(with_gap, 65_MiB), 80_MiB);
  EXPECT_EQ(block(with_gap, 200_MiB), 208_MiB);
  EXPECT_EQ(block(with_gap, 510_MiB), 512_MiB);
  EXPECT_EQ(block(with_gap, 513_MiB), 544_MiB);
}
TEST(torch_row, n034_cuda_33M_in_a_slot_of_0_round_to_512_bytes_and_take_34M) {
  EXPECT_EQ(under(with_gap, 33_MiB), (service{34_MiB, 34_MiB, large}));
  EXPECT_EQ(pytorch_family::native::configured(said(with_gap)).rounding.block_size(33_MiB), 33_MiB);
}
TEST(torch_row, n035_cuda_64M_in_quarters_stay) { EXPECT_EQ(block(by_4, 64_MiB), 64_MiB); }
TEST(torch_row, n036_a_byte_above_64M_in_quarters_is_80M) { EXPECT_EQ(block(by_4, 64_MiB + 1), 80_MiB); }
TEST(torch_row, n037_1200_bytes_are_too_small_for_quarters) { EXPECT_EQ(block(by_4, 1200), 1536u); }
TEST(torch_row, n038_cuda_2048_bytes_stay_and_2049_are_2560) {
  EXPECT_EQ(block(by_4, 2048), 2048u);
  EXPECT_EQ(block(by_4, 2049), 2560u);
}
TEST(torch_row, n039_cuda_1M_in_quarters_stays_small) {
  EXPECT_EQ(under(by_4, 1_MiB), (service{1_MiB, 2_MiB, small}));
}
TEST(torch_row, n040_a_list_that_skips_no_size) {
  const divisions d = table("roundup_power2_divisions:[64:8,128:2,256:4,512:2,1024:4,>:1]");
  for (std::size_t mib : {32u, 64u}) EXPECT_EQ(at_mib(d, mib), 8u) << mib;
  EXPECT_EQ(at_mib(d, 128), 2u);
  EXPECT_EQ(at_mib(d, 256), 4u);
  EXPECT_EQ(at_mib(d, 512), 2u);
  EXPECT_EQ(at_mib(d, 1024), 4u);
  for (std::size_t mib : {2048u, 4096u, 8192u}) EXPECT_EQ(at_mib(d, mib), 1u) << mib;
}
TEST(torch_row, n041_a_list_that_skips_1024_leaves_0_there) {
  const divisions d = table("roundup_power2_divisions:[128:8,256:16,512:1,2048:8,>:2]");
  for (std::size_t mib : {64u, 128u, 2048u}) EXPECT_EQ(at_mib(d, mib), 8u) << mib;
  EXPECT_EQ(at_mib(d, 256), 16u);
  EXPECT_EQ(at_mib(d, 512), 1u);
  EXPECT_EQ(at_mib(d, 1024), 0u);
  EXPECT_EQ(at_mib(d, 4096), 2u);
}
TEST(torch_row, n042_a_list_of_the_rest_alone_leaves_0_in_slot_0) {
  divisions expected = divisions::all(4);
  expected.in_slot[0] = 0;
  EXPECT_EQ(table("roundup_power2_divisions:[>:4]"), expected);
}

}  // namespace
