// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ostream>
#include <string_view>
#include <variant>

#include <gtest/gtest.h>

#include <tessera/config/dialect.hpp>
#include <tessera/config/text.hpp>
#include <tessera/config/words.hpp>

namespace config_tests {

/// A text that is no configuration, and why.
struct refused {
  std::string_view text;
  tessera::config::setting_error why;
};
inline std::ostream& operator<<(std::ostream& out, const refused& r) { return out << r.text; }

/// Rules that several dialects have.
inline constexpr std::string_view no_colon = "a ':' must follow the key";
inline constexpr std::string_view no_comma = "a ',' must part settings";
inline constexpr std::string_view not_bool = "must be True or False";
inline constexpr std::string_view not_decimal = "must be a decimal number of at most 9 places";
inline constexpr std::string_view not_inside = "must be greater than 0 and less than 1";
inline constexpr std::string_view not_mib = "must be a whole number of MiB";
inline constexpr std::string_view not_share = "must be from 0 to 1";
inline constexpr std::string_view unknown = "no such key";

/// Expects what was parsed to be an error that agrees with `why` in all parts.
template <typename Parsed>
void expect_refusal(const Parsed& parsed, const tessera::config::setting_error& why) {
  const auto* const said = std::get_if<tessera::config::setting_error>(&parsed);
  ASSERT_NE(said, nullptr);
  EXPECT_EQ(said->key, why.key);
  EXPECT_EQ(said->value, why.value);
  EXPECT_EQ(said->rule, why.rule);
  EXPECT_EQ(said->at, why.at);
  EXPECT_EQ(said->what, why.what);
  EXPECT_EQ(said->other, why.other);
}

/// Whether a text is legal in a dialect, what it says, and why not.
template <typename Dialect>
constexpr bool is_legal(std::string_view text) {
  return tessera::config::parse<Dialect>(text).index() == 0;
}
template <typename Dialect>
constexpr typename Dialect::settings settings(std::string_view text) {
  return std::get<0>(tessera::config::parse<Dialect>(text));
}
template <typename Dialect>
constexpr tessera::config::setting_error error(std::string_view text) {
  return std::get<1>(tessera::config::parse<Dialect>(text));
}

/// What a legal text says, which is the same when compiling and when running.
template <typename Dialect, tessera::config::text Text>
typename Dialect::settings both() {
  constexpr auto compiled = tessera::config::settings_in<Dialect, Text>();
  EXPECT_EQ(settings<Dialect>(Text.view()), compiled) << Text.view();
  return compiled;
}

}  // namespace config_tests
