// SPDX-License-Identifier: Apache-2.0
// Compares the tables of config/README.md with the tables of keys, and checks the latter.
#include <algorithm>
#include <cstddef>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include <gtest/gtest.h>

#include <tessera/config/grammar.hpp>
#include <tessera/config/paddle_flags.hpp>
#include <tessera/config/pytorch_conf.hpp>
#include <tessera/config/torch_npu_conf.hpp>

namespace {

using namespace tessera::config;

/// The keys that conflict with a key.
template <typename Grammar>
std::string conflicts_of(std::string_view key) {
  std::string all;
  for (const auto& pair : Grammar::exclusions) {
    if (pair.one != key && pair.other != key) continue;
    all += all.empty() ? "`" : ", `";
    all += std::string(pair.one == key ? pair.other : pair.one) + "`";
  }
  return all;
}
/// Escapes a text for a cell of a table, where a bar would end the cell.
std::string cell(std::string_view text) {
  std::string escaped;
  for (const char c : text) escaped += c == '|' ? std::string("\\|") : std::string(1, c);
  return escaped;
}
template <typename Grammar>
std::string table() {
  std::ostringstream out;
  out << "## " << Grammar::name
      << "\n| key | value | default | effect | conflicts with |\n|---|---|---|---|---|\n";
  for (const auto& k : Grammar::keys) {
    out << "| `" << k.name << "` | " << cell(k.allowed) << " | " << cell(k.default_value) << " | "
        << cell(k.effect) << " | " << conflicts_of<Grammar>(k.name) << " |\n";
  }
  return out.str();
}
/// The lines of a file that belong to tables, and the headings above the tables.
std::string tables_in(const std::string& path) {
  std::ifstream file(path);
  std::string all, heading;
  for (std::string line; std::getline(file, line);) {
    if (line == "## Documents and code") break;  // its rows are tests of conformance/
    if (line.starts_with("## ")) heading = line + "\n";
    if (!line.starts_with("|")) continue;
    all += std::exchange(heading, {}) + line + "\n";
  }
  return all;
}

TEST(config_readme, has_exactly_the_tables_of_keys) {
  EXPECT_EQ(tables_in(TESSERA_TESTS_DIR "/../include/tessera/config/README.md"),
            table<pytorch>() + table<torch_npu>() + table<paddle>());
}

template <typename Grammar>
class grammar_tables : public testing::Test {};
using all_grammars = testing::Types<pytorch, torch_npu, paddle>;
TYPED_TEST_SUITE(grammar_tables, all_grammars);

TYPED_TEST(grammar_tables, have_the_keys_that_their_rules_name) {
  const auto expect_key = [](std::string_view name) {
    EXPECT_LT(detail::key_index<TypeParam>(detail::token{name}), TypeParam::keys.size()) << name;
  };
  for (const auto& pair : TypeParam::exclusions) {
    expect_key(pair.one);
    expect_key(pair.other);
  }
  for (const auto& min : TypeParam::min_sizes) {
    expect_key(min.size);
    expect_key(min.bound);
  }
}

// bad_setting would truncate a longer rule.
TYPED_TEST(grammar_tables, have_rules_of_at_most_400_characters) {
  for (const auto& k : TypeParam::keys) EXPECT_LE(k.rule.size(), 400u) << k.rule;
  for (const auto& pair : TypeParam::exclusions) EXPECT_LE(pair.rule.size(), 400u) << pair.rule;
  for (const auto& least : TypeParam::min_sizes) EXPECT_LE(least.rule.size(), 400u) << least.rule;
}

TYPED_TEST(grammar_tables, have_each_key_once) {
  for (std::size_t i = 0; i < TypeParam::keys.size(); ++i)
    EXPECT_EQ(detail::key_index<TypeParam>({TypeParam::keys[i].name}), i);
}

TYPED_TEST(grammar_tables, document_defaults_as_written_or_described) {
  constexpr std::string_view described[] = {"unlimited", "off", "large_segment_size_mb", "9/8 of the device",
                                            "2 MiB"};
  for (const auto& k : TypeParam::keys) {
    bool is_described = false;
    for (const std::string_view each : described) is_described |= k.default_value == each;
    const std::string text =
        std::string(k.name) + std::string(TypeParam::assign) + std::string(k.default_value);
    const auto parsed = parse<TypeParam>(text);
    ASSERT_EQ(parsed.index(), is_described ? 1u : 0u) << text;
    if (is_described) continue;
    EXPECT_EQ(std::get<0>(parsed), typename TypeParam::settings{}) << text;
  }
}

// Each documented alternative of a key is accepted. The first ones switch off.
TYPED_TEST(grammar_tables, document_each_accepted_choice) {
  std::size_t choices = 0;
  for (const auto& k : TypeParam::keys) {
    if (k.format != detail::value_format::choice && k.format != detail::value_format::single_choice) continue;
    bool on = k.format == detail::value_format::single_choice;
    for (std::size_t begin = 0; begin < k.allowed.size(); ++choices) {
      const std::size_t end = std::min(k.allowed.find_first_of(",|", begin), k.allowed.size());
      const std::string text = std::string(k.name) + std::string(TypeParam::assign) +
                               std::string(k.allowed.substr(begin, end - begin));
      const auto parsed = parse<TypeParam>(text);
      ASSERT_EQ(parsed.index(), 0u) << text;
      EXPECT_EQ(std::get<0>(parsed).*k.member.template as<bool>(), on) << text;
      on |= end < k.allowed.size() && k.allowed[end] == ',';
      begin = end + 1 + (end < k.allowed.size() && k.allowed[end] == ',');
    }
  }
  EXPECT_GT(choices, 0u);
}

}  // namespace
