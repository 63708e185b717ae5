// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ostream>
#include <string_view>
#include <variant>

#include <gtest/gtest.h>

#include <tessera/config/words.hpp>

namespace config_tests {

/// A text that is no configuration, and why.
struct refused {
  std::string_view text;
  tessera::config::setting_error why;
};
inline std::ostream& operator<<(std::ostream& out, const refused& r) { return out << r.text; }

/// Expects what was parsed to be an error that agrees with `why` in all parts.
template <typename Parsed>
void expect_refusal(const Parsed& parsed, const tessera::config::setting_error& why) {
  const auto* const said = std::get_if<tessera::config::setting_error>(&parsed);
  ASSERT_NE(said, nullptr);
  EXPECT_EQ(said->key, why.key);
  EXPECT_EQ(said->value, why.value);
  EXPECT_EQ(said->rule, why.rule);
  EXPECT_EQ(said->at, why.at);
}

}  // namespace config_tests
