// SPDX-License-Identifier: Apache-2.0
// The tables of config/README.md, and the names that compilers print, are those of the tables of keys.
#include <algorithm>
#include <array>
#include <cstddef>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include <gtest/gtest.h>

#include <tessera/config/dialect.hpp>
#include <tessera/config/key.hpp>
#include <tessera/config/paddle.hpp>
#include <tessera/config/pytorch.hpp>
#include <tessera/config/torch_npu.hpp>

namespace {

using namespace tessera::config;

template <typename Dialect>
std::string_view name_of(typename Dialect::key_name key) {
  return Dialect::keys[static_cast<std::size_t>(key)].name;
}

/// What must not be written together with a key.
template <typename Dialect>
std::string goes_not_with(std::size_t index) {
  const auto key = static_cast<typename Dialect::key_name>(index);
  std::string all;
  for (const auto& pair : Dialect::exclusions) {
    if (pair.one != key && pair.other != key) continue;
    all += all.empty() ? "`" : ", `";
    all += std::string(name_of<Dialect>(pair.one == key ? pair.other : pair.one)) + "`";
  }
  return all;
}
/// A text in a cell of a table, where a bar must not end the cell.
std::string cell(std::string_view text) {
  std::string escaped;
  for (const char c : text) escaped += c == '|' ? std::string("\\|") : std::string(1, c);
  return escaped;
}
template <typename Dialect>
std::string table() {
  std::ostringstream out;
  out << "## " << Dialect::name
      << "\n| key | value | default | effect | goes not with |\n|---|---|---|---|---|\n";
  for (std::size_t i = 0; i < Dialect::keys.size(); ++i) {
    const auto& k = Dialect::keys[i];
    out << "| `" << k.name << "` | " << cell(k.value) << " | " << cell(k.otherwise) << " | " << cell(k.effect)
        << " | " << goes_not_with<Dialect>(i) << " |\n";
  }
  return out.str();
}
/// The lines of a file that belong to tables, and the headings above them.
std::string tables_in(const std::string& path) {
  std::ifstream file(path);
  std::string all, heading;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("## ")) heading = line + "\n";
    if (!line.starts_with("|")) continue;
    all += std::exchange(heading, {}) + line + "\n";
  }
  return all;
}

TEST(config_readme, has_the_tables_of_keys_and_no_other) {
  EXPECT_EQ(tables_in(TESSERA_TESTS_DIR "/../include/tessera/config/README.md"),
            table<pytorch>() + table<torch_npu>() + table<paddle>());
}

template <auto Key>
std::string_view as_compilers_print_it() {
  const std::string_view all = __PRETTY_FUNCTION__;  // ends in ...::name] or ...::name; ...]
  const std::size_t begin = all.find("_key::") + 6;
  return all.substr(begin, all.find_first_of(";]", begin) - begin);
}

template <typename Dialect>
class dialect_tables : public testing::Test {};
using all_dialects = testing::Types<pytorch, torch_npu, paddle>;
TYPED_TEST_SUITE(dialect_tables, all_dialects);

template <typename Dialect, std::size_t... I>
constexpr auto printed_names(std::index_sequence<I...>) {
  return std::array{as_compilers_print_it<static_cast<typename Dialect::key_name>(I)>()...};
}

TYPED_TEST(dialect_tables, name_each_key_as_its_enumerator) {
  constexpr std::size_t count = TypeParam::keys.size();
  const auto names = printed_names<TypeParam>(std::make_index_sequence<count>{});
  for (std::size_t i = 0; i < count; ++i) EXPECT_EQ(names[i], TypeParam::keys[i].name);
}

// A longer one would be cut off where it is thrown (bad_setting.hpp).
TYPED_TEST(dialect_tables, have_rules_of_at_most_100_characters) {
  for (const auto& k : TypeParam::keys) EXPECT_LE(k.rule.size(), 100u) << k.rule;
  for (const auto& pair : TypeParam::exclusions) EXPECT_LE(pair.rule.size(), 100u) << pair.rule;
  for (const auto& least : TypeParam::least_sizes) EXPECT_LE(least.rule.size(), 100u) << least.rule;
}

TYPED_TEST(dialect_tables, have_each_key_once) {
  for (std::size_t i = 0; i < TypeParam::keys.size(); ++i)
    EXPECT_EQ(key_index<TypeParam>({TypeParam::keys[i].name}), i);
}

TYPED_TEST(dialect_tables, say_the_default_as_it_is_written_or_in_words) {
  constexpr std::string_view in_words[] = {"unlimited", "off", "large_segment_size_mb", "9/8 of the device",
                                           "2 MiB"};
  for (const auto& k : TypeParam::keys) {
    bool is_words = false;
    for (const std::string_view each : in_words) is_words |= k.otherwise == each;
    const std::string text = std::string(k.name) + std::string(TypeParam::assign) + std::string(k.otherwise);
    const auto parsed = parse<TypeParam>(text);
    ASSERT_EQ(parsed.index(), is_words ? 1u : 0u) << text;
    if (is_words) continue;
    EXPECT_EQ(std::get<0>(parsed), typename TypeParam::settings{}) << text;
  }
}

// For a key that takes words, each of them is taken, and the first ones leave a switch off.
TYPED_TEST(dialect_tables, say_each_word_that_is_taken) {
  std::size_t words = 0;
  for (const auto& k : TypeParam::keys) {
    if (k.written != form::words && k.written != form::only_word) continue;
    bool on = k.written == form::only_word;
    for (std::size_t begin = 0; begin < k.value.size(); ++words) {
      const std::size_t end = std::min(k.value.find_first_of(",|", begin), k.value.size());
      const std::string text = std::string(k.name) + std::string(TypeParam::assign) +
                               std::string(k.value.substr(begin, end - begin));
      const auto parsed = parse<TypeParam>(text);
      ASSERT_EQ(parsed.index(), 0u) << text;
      EXPECT_EQ(std::get<0>(parsed).*k.to.template as<bool>(), on) << text;
      on |= end < k.value.size() && k.value[end] == ',';
      begin = end + 1 + (end < k.value.size() && k.value[end] == ',');
    }
  }
  EXPECT_GT(words, 0u);
}

}  // namespace
