// SPDX-License-Identifier: Apache-2.0
#include <cstddef>

#include <gtest/gtest.h>

#include <tessera/core/bytes.hpp>
#include <tessera/core/types.hpp>
#include <tessera/policy/chunks.hpp>
#include <tessera/policy/grow_at_end.hpp>
#include <tessera/policy/growth.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

namespace {

using namespace tessera;

constexpr std::size_t step = 512;  // the blocks here are multiples of it

TEST(memory_limit, is_the_lesser_of_bytes_and_share) {
  EXPECT_EQ(memory_limit{}.on(10_GiB), unlimited);
  EXPECT_EQ(memory_limit(4_GiB).on(10_GiB), 4_GiB);
  EXPECT_EQ(memory_limit(percent(50)).on(10_GiB), 5_GiB);
  EXPECT_EQ(memory_limit(4_GiB, percent(50)).on(10_GiB), 4_GiB);
  EXPECT_EQ(memory_limit(6_GiB, percent(50)).on(10_GiB), 5_GiB);
  EXPECT_EQ(memory_limit(6_GiB, percent(100)).on(2_GiB), 6_GiB);
}

TEST(fraction, of_more_than_a_whole_does_not_wrap) {
  EXPECT_EQ(percent(0).of(10_GiB), 0u);
  EXPECT_EQ((fraction{1'500'000'000}.of(10_GiB)), 15_GiB);
  EXPECT_EQ((fraction{2'000'000'000}.of(unlimited)), unlimited);
  EXPECT_EQ(percent(100).of(unlimited), unlimited);
}

TEST(grow_exactly, acquires_exactly_the_block) {
  EXPECT_EQ(grow_exactly<>::segment_size(7 * step, {}), 7 * step);
  EXPECT_EQ((grow_exactly<1_GiB>{}.limit.on(4_GiB)), 1_GiB);
}

struct grow_too_little : grow_exactly<> {
  [[nodiscard]] static std::size_t segment_size(std::size_t block, const usage&) noexcept {
    return block / 2;
  }
  bool operator==(const grow_too_little&) const = default;
};
TEST(growth_policy_death, a_segment_smaller_than_its_block_aborts) {
  caching_allocator<with<pytorch<>, grow_too_little>, simulated_device> pool;
  EXPECT_DEATH((void)pool.try_allocate(1_MiB), "a segment must hold the block it is taken for");
}

TEST(grow_by_segments, has_three_sizes_of_blocks) {
  constexpr grow_by_segments<> growth{};
  EXPECT_EQ(growth.segment_size(step, {}), 2_MiB);
  EXPECT_EQ(growth.segment_size(1_MiB, {}), 2_MiB);
  EXPECT_EQ(growth.segment_size(1_MiB + step, {}), 20_MiB);
  EXPECT_EQ(growth.segment_size(10_MiB - step, {}), 20_MiB);
  EXPECT_EQ(growth.segment_size(10_MiB, {}), 10_MiB);
  EXPECT_EQ(growth.segment_size(10_MiB + step, {}), 12_MiB);
  EXPECT_EQ((grow_by_segments<>{.limit = 3_GiB}.limit.on(4_GiB)), 3_GiB);
}

TEST(grow_by_segments, gives_a_block_above_a_small_large_segment_one_of_its_own) {
  constexpr grow_by_segments<> growth{.large = 5_MiB};
  EXPECT_EQ(growth.segment_size(5_MiB, {}), 5_MiB);
  EXPECT_EQ(growth.segment_size(5_MiB + step, {}), 6_MiB);
}

TEST(grow_by_chunks, takes_the_chunk_of_the_blocks_side_of_the_boundary) {
  constexpr grow_by_chunks<2_MiB, 10_MiB, 1_MiB> growth{};
  EXPECT_EQ(growth.segment_size(step, {}), 2_MiB);
  EXPECT_EQ(growth.segment_size(1_MiB, {}), 2_MiB);
  EXPECT_EQ(growth.segment_size(1_MiB + step, {}), 10_MiB);
  EXPECT_EQ(growth.segment_size(10_MiB, {}), 10_MiB);
  EXPECT_EQ(growth.segment_size(10_MiB + step, {}), 10_MiB + step);
  EXPECT_EQ((grow_by_chunks<>{}.segment_size(step, {})), step);
  EXPECT_EQ((grow_by_chunks<>{.limit = percent(25)}.limit.on(4_GiB)), 1_GiB);
}

TEST(chunk_schedule, leaves_a_twentieth_and_small_rests) {
  EXPECT_EQ(chunk_schedule::available(2000), 1900u);
  EXPECT_EQ(chunk_schedule::available(269), 256u);
  EXPECT_EQ(chunk_schedule::available(268), 0u);
}

TEST(chunk_schedule, takes_the_configured_size_or_a_share) {
  constexpr chunk_schedule plan{.first = 40_MiB, .further = 5_MiB};
  EXPECT_EQ(plan.first_chunk(1_GiB), 40_MiB);
  EXPECT_EQ(plan.further_chunk(1_GiB), 5_MiB);
  EXPECT_EQ(plan.largest_pooled(1_GiB), 40_MiB);
  EXPECT_EQ((chunk_schedule{.first = 5_MiB, .further = 40_MiB}.largest_pooled(1_GiB)), 40_MiB);
  constexpr chunk_schedule half{.share = percent(50)};
  EXPECT_EQ(half.first_chunk(2000), 950u);
  EXPECT_EQ(half.further_chunk(2000), 950u);
}

TEST(chunk_schedule, fails_if_the_chunk_cannot_be_acquired) {
  constexpr chunk_schedule plan{.first = 1900, .further = 1000};
  EXPECT_EQ(plan.next(2000, true), 1900u);
  EXPECT_EQ(plan.next(2000, false), 1000u);
  EXPECT_EQ(plan.next(1998, true), 1999u);  // 1900 of them may not be taken
  EXPECT_EQ(plan.next(1899, true), 1900u);
  EXPECT_EQ((chunk_schedule{.first = 1}.next(200, true)), 201u);
}

TEST(grow_by_schedule, takes_the_first_chunk_if_nothing_is_reserved_and_further_ones_later) {
  constexpr grow_by_schedule<chunk_schedule{.first = 40_MiB, .further = 5_MiB}> growth{};
  usage now{.limit = 1_GiB};
  EXPECT_EQ(growth.segment_size(step, now), 40_MiB);
  now.reserved = 40_MiB;
  EXPECT_EQ(growth.segment_size(step, now), 5_MiB);
  EXPECT_EQ(growth.segment_size(6_MiB, now), 6_MiB);
  EXPECT_EQ(growth.segment_size(40_MiB, now), 40_MiB);
  EXPECT_EQ(growth.segment_size(40_MiB + step, now), 40_MiB + step);
  now.reserved = 1_GiB - 5_MiB;  // of these, a twentieth must remain
  EXPECT_GT(growth.segment_size(step, now), 5_MiB);
  now.reserved = 2_GiB;
  EXPECT_GT(growth.segment_size(step, now), 0u);
  EXPECT_EQ((grow_by_schedule<>{.limit = 2_GiB}.limit.on(4_GiB)), 2_GiB);
}

TEST(grow_by_schedule, is_refused_for_any_block_if_the_plan_exceeds_the_device) {
  constexpr grow_by_schedule<chunk_schedule{.first = 2_GiB, .further = 5_MiB}> growth{};
  usage now{.limit = 1_GiB};
  EXPECT_EQ(growth.segment_size(step, now), 2_GiB);
  EXPECT_EQ(growth.segment_size(3_GiB, now), 3_GiB);
  constexpr grow_by_schedule<chunk_schedule{.first = 1900, .further = 1000}> just_right{};
  EXPECT_EQ(just_right.segment_size(64, {.limit = 2000}), 1900u);
  constexpr grow_by_schedule<chunk_schedule{.first = 1_GiB, .further = 5_MiB}> just_too_large{};
  now.reserved = 0;
  EXPECT_EQ(just_too_large.segment_size(step, now), 1_GiB + 1);
}

TEST(grow_by_mapping, compares_the_limit_with_the_segment_of_grow_by_segments) {
  constexpr grow_by_mapping<> growth{};
  EXPECT_EQ(growth.segment_size(1_MiB, {}), 2_MiB);
  EXPECT_EQ(growth.segment_size(1_MiB + step, {}), 20_MiB);
  EXPECT_EQ(growth.segment_size(10_MiB - step, {}), 20_MiB);
  EXPECT_EQ(growth.segment_size(10_MiB, {}), 10_MiB);
  EXPECT_EQ(growth.segment_size(11_MiB, {}), 12_MiB);
  constexpr grow_by_mapping<> little{.large = 6_MiB};
  EXPECT_EQ(little.segment_size(6_MiB, {}), 6_MiB);
  EXPECT_EQ(little.segment_size(7_MiB, {}), 8_MiB);
  EXPECT_EQ((grow_by_mapping<>{.limit = 2_GiB}.limit.on(4_GiB)), 2_GiB);
}

TEST(grow_by_mapping, has_small_pages_for_small_blocks) {
  constexpr grow_by_mapping<2_MiB, 6_MiB> growth{};
  EXPECT_EQ(growth.mapping_unit(1_MiB), 2_MiB);
  EXPECT_EQ(growth.mapping_unit(1_MiB + step), 6_MiB);
}

TEST(grow_by_mapping, reserves_the_configured_addresses_up_to_nine_eighths_of_the_device) {
  EXPECT_EQ(grow_by_mapping<>{}.range_size(8_GiB), 9_GiB);
  EXPECT_EQ((grow_by_mapping<>{.range = 3_GiB}.range_size(8_GiB)), 3_GiB);
  EXPECT_EQ((grow_by_mapping<>{.range = percent(50)}.range_size(8_GiB)), 4_GiB);
  EXPECT_EQ((grow_by_mapping<>{.range = 30_GiB}.range_size(8_GiB)), 9_GiB);
  EXPECT_EQ((grow_by_mapping<>{.range = fraction{3'000'000'000}}.range_size(8_GiB)), 9_GiB);
}

template <typename Growth>
void expect_aligned_from_two_mebibytes_on() {
  Growth growth{};
  EXPECT_EQ(growth.base_alignment(4_MiB), 1u);
  growth.alignment = 16_KiB;
  EXPECT_EQ(growth.base_alignment(2_MiB), 16_KiB);
  EXPECT_EQ(growth.base_alignment(2_MiB - step), 1u);
  growth.alignment = 0;
  EXPECT_EQ(growth.base_alignment(2_MiB), 1u);
}
TEST(grow_by_mapping, aligns_blocks_from_two_mebibytes_on) {
  expect_aligned_from_two_mebibytes_on<grow_by_mapping<>>();
}
TEST(grow_by_stitching, aligns_blocks_from_two_mebibytes_on) {
  expect_aligned_from_two_mebibytes_on<grow_by_stitching<>>();
}

TEST(grow_at_end, has_units_for_small_and_large_blocks) {
  constexpr grow_at_end<> growth{.large = 6_MiB};
  constexpr pool_traits pools{.max_small_block = 1_MiB};
  EXPECT_EQ(growth.mapping_unit(1_MiB, pools), 2_MiB);
  EXPECT_EQ(growth.mapping_unit(1_MiB + step, pools), 6_MiB);
  EXPECT_EQ(growth.mapping_unit(step), 6_MiB);  // without small blocks
  EXPECT_EQ(growth.segment_size(7_MiB, {}, pools), 12_MiB);
  EXPECT_EQ(growth.bytes_of_chunk(12_MiB, 6_MiB), 6_MiB);
}
TEST(grow_at_end, adds_bytes_before_it_rounds_up) {
  constexpr grow_at_end<2_MiB, 2_MiB, 256, append_in::one_chunk, false> growth{};
  EXPECT_EQ(growth.bytes_to_map(2_MiB - 256, 2_MiB), 2_MiB);
  EXPECT_EQ(growth.bytes_to_map(2_MiB, 2_MiB), 4_MiB);
  EXPECT_EQ(growth.bytes_of_chunk(12_MiB, 2_MiB), 12_MiB);
}
TEST(grow_at_end, moves_idle_chunks_of_large_blocks_if_it_may) {
  constexpr pool_traits pools{.max_small_block = 1_MiB};
  EXPECT_FALSE(grow_at_end<>{}.moves_idle(2_MiB, pools));
  EXPECT_TRUE(grow_at_end<>{.moves_idle_large = true}.moves_idle(2_MiB, pools));
  EXPECT_FALSE(grow_at_end<>{.moves_idle_large = true}.moves_idle(1_MiB, pools));
}
TEST(grow_at_end, reserves_a_multiple_of_the_device) {
  EXPECT_EQ(grow_at_end<>::range_size(8_GiB), 8_GiB);
  using four = grow_at_end<2_MiB, 2_MiB, 0, append_in::units, false, tunable(memory_limit{}), 4>;
  EXPECT_EQ(four::range_size(8_GiB), 32_GiB);
  EXPECT_EQ(four::range_size(unlimited), unlimited);
}

TEST(grow_by_stitching, maps_multiples_of_two_mebibytes) {
  constexpr grow_by_stitching<> growth{};
  EXPECT_EQ(growth.segment_size(step, {}), 2_MiB);
  EXPECT_EQ(growth.segment_size(2_MiB + step, {}), 4_MiB);
  EXPECT_EQ(growth.mapping_unit(step), 2_MiB);
  EXPECT_EQ(growth.range_size(8_GiB), 9_GiB);
  EXPECT_EQ((grow_by_stitching<>{.limit = 2_GiB}.limit.on(4_GiB)), 2_GiB);
}

TEST(grow_by_stitching, takes_freely_up_to_the_peak_and_some_slack) {
  constexpr grow_by_stitching<std::size_t{64}, percent(10)> growth{};
  EXPECT_EQ(growth.move_threshold({.limit = 8_GiB, .peak_active = 100_MiB}), 110_MiB);
  EXPECT_EQ(growth.move_threshold({.limit = 8_GiB, .peak_active = 111_MiB}), 122_MiB);  // 122.1
  EXPECT_EQ(growth.move_threshold({.limit = 8_GiB, .peak_active = 100_MiB, .peak_reserved = 109_MiB}),
            110_MiB);
  EXPECT_EQ(growth.move_threshold({.limit = 8_GiB, .peak_active = 100_MiB, .peak_reserved = 111_MiB}),
            111_MiB);
  EXPECT_EQ(growth.move_threshold({.limit = 108_MiB, .peak_active = 100_MiB}), 108_MiB);
  EXPECT_EQ(growth.move_threshold({.limit = 110_MiB, .peak_active = 100_MiB}), 110_MiB);
}

TEST(grow_by_stitching, by_default_takes_12_percent_above_the_peak_and_maps_parts_of_48) {
  constexpr grow_by_stitching<> growth{};
  EXPECT_EQ(growth.move_threshold({.limit = 8_GiB, .peak_active = 100_MiB}), 112_MiB);
  EXPECT_EQ(growth.max_chunk({.limit = 80_GiB, .peak_active = 2_GiB}), 42_MiB);
}

TEST(grow_by_stitching, maps_a_part_of_the_peak_as_one_and_less_near_the_limit) {
  constexpr grow_by_stitching<std::size_t{64}, percent(4), memory_limit{}, std::size_t{16}> growth{};
  const auto largest = [&](stitching_backend::growth_state state) { return growth.max_chunk(state); };
  EXPECT_EQ(largest({.limit = 8_GiB}), 16_MiB);
  EXPECT_EQ(largest({.limit = 8_GiB, .peak_active = 2_GiB}), 32_MiB);
  EXPECT_EQ(largest({.limit = 8_GiB, .peak_active = 2_GiB, .peak_reserved = 3_GiB}), 48_MiB);
  EXPECT_EQ(largest({.limit = 8_GiB, .peak_active = 3_GiB, .peak_reserved = 2_GiB}), 48_MiB);
  EXPECT_EQ(largest({.limit = 8_GiB, .peak_active = 2_GiB + 65_MiB}), 32_MiB);
  EXPECT_EQ(largest({.reserved = 8_GiB - 320_MiB, .limit = 8_GiB, .peak_active = 2_GiB}), 20_MiB);
  EXPECT_EQ(largest({.reserved = 8_GiB - 330_MiB, .limit = 8_GiB, .peak_active = 2_GiB}), 20_MiB);
  EXPECT_EQ(largest({.reserved = 8_GiB - 63_MiB, .limit = 8_GiB, .peak_active = 2_GiB}), 2_MiB);
  EXPECT_EQ(largest({.reserved = 8_GiB - 64_MiB, .limit = 8_GiB, .peak_active = 2_GiB}), 4_MiB);
  EXPECT_EQ(largest({.reserved = 8_GiB, .limit = 8_GiB, .peak_active = 2_GiB}), 2_MiB);
  EXPECT_EQ(largest({.reserved = 9_GiB, .limit = 8_GiB, .peak_active = 2_GiB}), 2_MiB);
}

TEST(grow_by_stitching, takes_no_parts_for_one) {
  for (const std::size_t parts : {0u, 1u}) {
    const grow_by_stitching<> growth{.peak_parts = parts, .rest_parts = parts};
    EXPECT_EQ(growth.max_chunk({.limit = 8_GiB, .peak_active = 2_GiB}), 2_GiB);
  }
  const grow_by_stitching<> halves{.peak_parts = 2, .rest_parts = 1};
  EXPECT_EQ(halves.max_chunk({.limit = 8_GiB, .peak_active = 2_GiB}), 1_GiB);
}

TEST(grow_by_stitching, stretches_pieces_for_larger_blocks_only) {
  EXPECT_EQ(grow_by_stitching<>::min_chunk(512_KiB), 0u);
  EXPECT_EQ(grow_by_stitching<>::min_chunk(512_KiB + step), 16_MiB);
}

TEST(grow_by_stitching, saves_pages_above_half_of_the_limit) {
  EXPECT_FALSE(grow_by_stitching<>::should_save_pages(4_GiB, 8_GiB));
  EXPECT_TRUE(grow_by_stitching<>::should_save_pages(4_GiB + step, 8_GiB));
}

}  // namespace
