// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <type_traits>

#include <gtest/gtest.h>

#include <tessera/policy/rounding.hpp>

namespace {

using namespace tessera;

TEST(round_padded, adds_the_padding_before_it_rounds) {
  constexpr round_padded<64, round_to_multiple<256>> paddle{};
  EXPECT_EQ(paddle.block_size(1), 256u);
  EXPECT_EQ(paddle.block_size(192), 256u);
  EXPECT_EQ(paddle.block_size(193), 512u);
  constexpr round_padded<32, round_to_multiple<512>> npu{};
  EXPECT_EQ(npu.block_size(480), 512u);
  EXPECT_EQ(npu.block_size(481), 1024u);
  EXPECT_EQ(npu.block_size(512), 1024u);
  EXPECT_EQ((round_padded<0, round_to_multiple<256>>{}.block_size(256)), 256u);
}

TEST(round_padded, serves_the_largest_request) {
  constexpr round_padded<64, round_to_multiple<256>> paddle{};
  EXPECT_EQ(paddle.block_size(max_request), max_request + 257);
}

TEST(round_padded, has_the_parameters_of_the_padded_policy) {
  round_padded<32, round_to_divisions<512>> npu;
  EXPECT_EQ(npu.block_size(1_MiB + 1), 1_MiB + 512);
  npu.inner.table = divisions::all(4);
  EXPECT_EQ(npu.block_size(1_MiB + 1), 1_MiB + 256_KiB);
  EXPECT_EQ(npu.block_size(1_MiB - 32), 1_MiB);
  EXPECT_EQ(npu.block_size(1_MiB - 31), 1_MiB + 256_KiB);
}

TEST(round_to_power_of_two, rounds_above_the_threshold_to_the_least_size_only) {
  constexpr round_to_power_of_two<4_KiB, 64_MiB> rounding{};
  EXPECT_EQ(rounding.block_size(1), 4_KiB);
  EXPECT_EQ(rounding.block_size(33_MiB), 64_MiB);
  EXPECT_EQ(rounding.block_size(64_MiB), 64_MiB);
  EXPECT_EQ(rounding.block_size(64_MiB + 1), 64_MiB + 4_KiB);
  EXPECT_EQ(rounding.block_size(80_MiB), 80_MiB);
  EXPECT_EQ(rounding.block_size(max_request), max_request + 1);
}

TEST(round_to_power_of_two, rounds_nothing_beyond_a_threshold_between_two_powers) {
  constexpr round_to_power_of_two<4_KiB, 100_MiB> rounding{};
  EXPECT_EQ(rounding.block_size(40_MiB), 64_MiB);
  EXPECT_EQ(rounding.block_size(90_MiB), 100_MiB);
  EXPECT_EQ(rounding.block_size(100_MiB + 1), 100_MiB + 4_KiB);
}

static_assert(std::is_empty_v<round_to_power_of_two<512>>);
static_assert(std::is_empty_v<round_padded<64, round_to_multiple<256>>>);

}  // namespace
