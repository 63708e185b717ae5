// SPDX-License-Identifier: Apache-2.0
// Rows 94 to 103 about PyTorch's expandable segments, and the parts of rows 58 and 71 about addresses.
#include <cstddef>
#include <cstdint>

#include <gtest/gtest.h>

#include <tessera/tessera.hpp>

#include "extensions.hpp"
#include "rows.hpp"

namespace {

using namespace tessera;
using namespace conformance;
using action = allocator_event::action;

/// An allocator that reserves this many addresses at once.
expandable reserving(memory_limit reserve, std::size_t capacity) {
  return expandable{device_of(capacity),
                    pytorch_family::expandable::configured(
                        {.expandable_segments = true, .expandable_segments_reserve = reserve})};
}
/// Bytes of the first range.
std::size_t range_of(expandable pool) {
  (void)pool.allocate(5_MiB);
  for (const allocator_event& e : observer_of(pool).events) {
    if (e.what == action::range_reserve) return e.bytes;
  }
  return 0;
}

TEST(torch_row, n058_a_reserve_is_a_share_or_a_size_and_never_above_9_eighths_of_the_device) {
  EXPECT_EQ(range_of(reserving(percent(50), 80_GiB)), 40_GiB);
  EXPECT_EQ(range_of(reserving(40_GiB, 80_GiB)), 40_GiB);
  EXPECT_EQ(range_of(reserving(percent(100), 80_GiB)), 80_GiB);
  EXPECT_EQ(range_of(reserving(unlimited - 1, 80_GiB)), 90_GiB);
  const config::pytorch::settings nothing_said;
  EXPECT_EQ(range_of(reserving(nothing_said.expandable_segments_reserve, 80_GiB)), 90_GiB);
  EXPECT_EQ(range_of(reserving(100_GiB, 80_GiB)), 90_GiB);
  EXPECT_EQ(range_of(reserving(50_MiB, 80_GiB)), 60_MiB) << "in whole pages";
}
TEST(torch_row, n071_a_request_beyond_the_reserve_is_out_of_memory_and_changes_nothing) {
  expandable pool = reserving(percent(5), 80_GiB);
  EXPECT_THROW((void)pool.allocate(16_GiB), out_of_memory);
  EXPECT_EQ(observer_of(pool).count(action::oom), 1u);
  EXPECT_EQ(observer_of(pool).count(action::range_reserve), 0u);
  EXPECT_THROW((void)pool.allocate(8000_GiB), out_of_memory);
  EXPECT_EQ(observer_of(pool).count(action::oom), 2u);
  EXPECT_EQ(pool.statistics().num_ooms, 2u);
  EXPECT_EQ(reserved(pool), 0u);
  EXPECT_EQ(pool.provider().held().reserved, 0u);
  EXPECT_STREQ(pool.provider().last_error(), "") << "the device was not asked for what cannot be";
}
TEST(torch_row, n071_requests_within_the_reserve_take_range_after_range) {
  expandable pool = reserving(percent(5), 80_GiB);
  void* const first = pool.allocate(3_GiB);
  EXPECT_THROW((void)pool.allocate(5_GiB), out_of_memory) << "a range beside the first would hold 4 GiB";
  EXPECT_EQ(pool.current_usage().allocated, 3_GiB);
  EXPECT_NE(pool.allocate(4_GiB), nullptr);
  EXPECT_EQ(observer_of(pool).count(action::range_reserve), 2u);
  EXPECT_EQ(pool.allocate(512_MiB), static_cast<char*>(first) + 3_GiB) << "the first has room for that";
  EXPECT_EQ(observer_of(pool).count(action::range_reserve), 2u);
  EXPECT_STREQ(pool.audit(), nullptr);
}

TEST(torch_row, n094_the_first_5M_map_a_page_of_20M_and_no_segment) {
  expandable pool;
  EXPECT_EQ(first(5_MiB, pool), (service{5_MiB, 20_MiB, false}));
  EXPECT_EQ(segments(pool), 0u);
  EXPECT_EQ(pool.current_usage().cached, 15_MiB);
  EXPECT_EQ(split_off(pool), parts{}) << "what ranges hold is not counted as split off";
  EXPECT_EQ(observer_of(pool).count(action::segment_map), 1u);
}
TEST(torch_row, n095_30M_more_begin_in_the_rest_and_map_one_page_more) {
  expandable pool;
  void* const low = pool.allocate(5_MiB);
  void* const high = pool.allocate(30_MiB);
  EXPECT_EQ(at(high), at(low) + 5_MiB);
  EXPECT_EQ(reserved(pool), 40_MiB);
  EXPECT_EQ(pool.current_usage().cached, 5_MiB);
  EXPECT_EQ(observer_of(pool).count(action::segment_map), 2u);
}
TEST(torch_row, n096_the_first_byte_maps_a_page_of_2M) {
  expandable pool;
  EXPECT_EQ(first(1, pool), (service{512, 2_MiB, true}));
  EXPECT_EQ(segments(pool), 0u);
}
TEST(torch_row, n100_only_whole_free_pages_are_unmapped) {
  expandable pool;
  void* const kept = pool.allocate(5_MiB);
  void* const rest = pool.allocate(35_MiB);
  ASSERT_EQ(at(rest), at(kept) + 5_MiB);
  pool.deallocate(rest);
  EXPECT_EQ(reserved(pool), 40_MiB);
  observer_of(pool).events.clear();
  pool.trim();
  ASSERT_EQ(observer_of(pool).actions(), std::vector{action::segment_unmap});
  EXPECT_EQ(observer_of(pool).events[0].address, at(kept) + 20_MiB);
  EXPECT_EQ(reserved(pool), 20_MiB);
  EXPECT_EQ(pool.current_usage().cached, 15_MiB);
  EXPECT_EQ(pool.allocate(15_MiB), rest);
  EXPECT_EQ(reserved(pool), 20_MiB);
  EXPECT_STREQ(pool.audit(), nullptr);
}
TEST(torch_row, n102_two_streams_have_two_ranges) {
  expandable pool;
  (void)pool.allocate(5_MiB, stream_id{1});
  (void)pool.allocate(5_MiB, stream_id{2});
  (void)pool.allocate(5_MiB, stream_id{1});
  EXPECT_EQ(observer_of(pool).count(action::range_reserve), 2u);
  EXPECT_EQ(reserved(pool), 40_MiB);
}
TEST(torch_row, n103_a_larger_block_that_cannot_grow_is_taken_before_one_that_can) {
  expandable pool;
  void* const low = pool.allocate(12_MiB);
  (void)pool.allocate(18_MiB);  // up to 30 MiB; 10 MiB are left, followed by unmapped addresses
  ASSERT_EQ(reserved(pool), 40_MiB);
  pool.deallocate(low);
  EXPECT_EQ(pool.allocate(8_MiB), low);
  EXPECT_EQ(reserved(pool), 40_MiB);
  EXPECT_STREQ(pool.audit(), nullptr);
}

}  // namespace
