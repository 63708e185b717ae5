// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <string>

#include <gtest/gtest.h>

#include <tessera/core/bytes.hpp>

namespace {

using tessera::detail::fixed_text;

TEST(fixed_text, joins_words_numbers_and_addresses) {
  fixed_text text;
  EXPECT_TRUE(text.empty());
  EXPECT_STREQ(text.c_str(), "");
  text.add("at ").add_address(0xDEADBEEF).add(", ").add(std::uint64_t{0}).add(" of ").add(UINT64_MAX);
  EXPECT_STREQ(text.c_str(), "at 0xdeadbeef, 0 of 18446744073709551615");
  EXPECT_EQ(text.size(), std::string(text.c_str()).size());
  EXPECT_FALSE(text.empty());
}

TEST(fixed_text, leaves_out_what_does_not_fit) {
  const std::string longer(fixed_text::capacity + 10, 'x');
  fixed_text text;
  text.add(longer.c_str()).add("y").add(std::uint64_t{12345});
  EXPECT_EQ(text.c_str(), longer.substr(0, fixed_text::capacity));
}

}  // namespace
