// SPDX-License-Identifier: Apache-2.0
#include <type_traits>

#include <gtest/gtest.h>

#include <tessera/core/bytes.hpp>
#include <tessera/policy/split.hpp>

namespace {

using namespace tessera;

TEST(split_never, lets_larger_blocks_of_the_same_class_serve_and_no_others) {
  constexpr split_never<block_fit::same_power_of_two> split{};
  EXPECT_TRUE(split.may_serve(64_MiB, 64_MiB));
  EXPECT_TRUE(split.may_serve(70_MiB, 100_MiB));
  EXPECT_TRUE(split.may_serve(64_MiB + 64, 128_MiB));
  EXPECT_FALSE(split.may_serve(64_MiB, 65_MiB));
  EXPECT_FALSE(split.may_serve(64_MiB, 128_MiB));
  EXPECT_FALSE(split.may_serve(100_MiB, 129_MiB));
  EXPECT_FALSE(split.should_split(70_MiB, 100_MiB));
}

TEST(split_never, lets_any_block_serve_whole) {
  EXPECT_TRUE(split_never<>::may_serve(1_MiB, 1_GiB));
  EXPECT_FALSE(split_never<>::should_split(1_MiB, 1_GiB));
  EXPECT_EQ(split_never<>::oversize_from(), unlimited);
  EXPECT_TRUE(split_never<block_fit::exact>::may_serve(1_MiB, 1_MiB));
  EXPECT_FALSE(split_never<block_fit::exact>::may_serve(1_MiB, 1_MiB + 512));
}

TEST(split_if_remainder_at_least, splits_if_exactly_this_much_remains) {
  constexpr split_if_remainder_at_least<64, block_end::high> split{};
  EXPECT_TRUE(split.may_serve(1_MiB, 1_GiB));
  EXPECT_TRUE(split.should_split(1_MiB, 1_MiB + 64));
  EXPECT_FALSE(split.should_split(1_MiB + 64, 1_MiB + 64));
  constexpr split_if_remainder_at_least<128> more{};
  EXPECT_TRUE(more.should_split(1_MiB, 1_MiB + 128));
  EXPECT_FALSE(more.should_split(1_MiB, 1_MiB + 64));
  EXPECT_EQ(split.allocated_end(), block_end::high);
  EXPECT_EQ(more.allocated_end(), block_end::low);
  EXPECT_EQ(split.oversize_from(), unlimited);
}

TEST(split_below, keeps_oversize_blocks_for_oversize_requests) {
  constexpr split_below<32_MiB, 20_MiB> split{};
  EXPECT_TRUE(split.may_serve(1_MiB, 32_MiB - 512));
  EXPECT_FALSE(split.may_serve(1_MiB, 32_MiB));
  EXPECT_FALSE(split.may_serve(32_MiB - 512, 32_MiB));
  EXPECT_TRUE(split.may_serve(32_MiB, 32_MiB));
  EXPECT_TRUE(split.may_serve(32_MiB, 52_MiB - 512));
  EXPECT_FALSE(split.may_serve(32_MiB, 52_MiB));
  EXPECT_EQ(split.oversize_from(), 32_MiB);
  EXPECT_TRUE(split_below<>{}.may_serve(1, unlimited - 1));
}

TEST(split_below, splits_small_blocks_always_and_larger_ones_if_enough_remains) {
  constexpr split_below<32_MiB, 20_MiB, 1_MiB, 256_KiB> split{};
  EXPECT_TRUE(split.should_split(1_MiB, 1_MiB + 64));
  EXPECT_FALSE(split.should_split(1_MiB, 1_MiB));
  EXPECT_FALSE(split.should_split(1_MiB + 64, 1_MiB + 64 + 256_KiB));
  EXPECT_TRUE(split.should_split(1_MiB + 64, 1_MiB + 128 + 256_KiB));
  EXPECT_TRUE(split.should_split(32_MiB - 64, 33_MiB));
  EXPECT_FALSE(split.should_split(32_MiB, 51_MiB));
  EXPECT_EQ(split.allocated_end(), block_end::low);
}

static_assert(std::is_empty_v<split_never<block_fit::same_power_of_two>>);

}  // namespace
