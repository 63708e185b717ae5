// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ostream>
#include <string_view>
#include <variant>

#include <gtest/gtest.h>

#include <tessera/config/grammar.hpp>

namespace config_tests {

/// A text that is rejected, and the expected error.
struct refused {
  std::string_view text;
  tessera::config::setting_error why;
};
inline std::ostream& operator<<(std::ostream& out, const refused& r) { return out << r.text; }

/// Rules of several grammars.
inline constexpr std::string_view no_colon = "a ':' must follow the key";
inline constexpr std::string_view no_comma = "a ',' must separate settings";
inline constexpr std::string_view not_bool = "must be True or False";
inline constexpr std::string_view at_least_0 = "must be at least 0";
inline constexpr std::string_view not_decimal = "must be a decimal number of at most 9 places";
inline constexpr std::string_view not_inside = "must be greater than 0 and less than 1";
inline constexpr std::string_view not_mib = "must be a whole number of MiB";
inline constexpr std::string_view not_share = "must be from 0 to 1";
inline constexpr std::string_view unknown = "no such key";

/// Expects an error that equals `why` in all members.
template <typename Parsed>
void expect_refusal(const Parsed& parsed, const tessera::config::setting_error& why) {
  const auto* const error_found = std::get_if<tessera::config::setting_error>(&parsed);
  ASSERT_NE(error_found, nullptr);
  EXPECT_EQ(error_found->key, why.key);
  EXPECT_EQ(error_found->value, why.value);
  EXPECT_EQ(error_found->rule, why.rule);
  EXPECT_EQ(error_found->offset, why.offset);
  EXPECT_EQ(error_found->code, why.code);
  EXPECT_EQ(error_found->other_key, why.other_key);
}

/// Expects that a text has these settings in a grammar, or this error.
template <typename Grammar>
constexpr bool is_legal(std::string_view text) {
  return tessera::config::parse<Grammar>(text).index() == 0;
}
template <typename Grammar>
constexpr typename Grammar::settings settings(std::string_view text) {
  return std::get<0>(tessera::config::parse<Grammar>(text));
}
template <typename Grammar>
constexpr tessera::config::setting_error error(std::string_view text) {
  return std::get<1>(tessera::config::parse<Grammar>(text));
}

/// The settings of a legal text, which must be the same at compile time and at run time.
template <typename Grammar, tessera::config::detail::fixed_string Text>
typename Grammar::settings both() {
  constexpr auto compiled = tessera::config::detail::settings_in<Grammar, Text>();
  EXPECT_EQ(settings<Grammar>(std::string_view(Text.chars)), compiled) << std::string_view(Text.chars);
  return compiled;
}

/// Expects that a legal text changes the default settings exactly as `change` does.
template <typename Grammar, tessera::config::detail::fixed_string Text>
void expect_change(auto change) {
  typename Grammar::settings expected;
  change(expected);
  EXPECT_EQ((both<Grammar, Text>()), expected) << std::string_view(Text.chars);
}

}  // namespace config_tests
