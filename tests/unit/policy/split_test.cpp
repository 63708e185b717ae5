// SPDX-License-Identifier: Apache-2.0
#include <type_traits>

#include <gtest/gtest.h>

#include <tessera/core/bytes.hpp>
#include <tessera/policy/split.hpp>

namespace {

using namespace tessera;

TEST(split_never_and_fit_within_power_of_two, lets_larger_blocks_of_the_same_class_serve_and_no_others) {
  constexpr split_never_and_fit_within_power_of_two split{};
  EXPECT_TRUE(split.may_serve(64_MiB, 64_MiB));
  EXPECT_TRUE(split.may_serve(70_MiB, 100_MiB));
  EXPECT_TRUE(split.may_serve(64_MiB + 64, 128_MiB));
  EXPECT_FALSE(split.may_serve(64_MiB, 65_MiB));
  EXPECT_FALSE(split.may_serve(64_MiB, 128_MiB));
  EXPECT_FALSE(split.may_serve(100_MiB, 129_MiB));
  EXPECT_FALSE(split.should_split(70_MiB, 100_MiB));
}

static_assert(std::is_empty_v<split_never_and_fit_within_power_of_two>);

}  // namespace
