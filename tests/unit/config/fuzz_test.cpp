// SPDX-License-Identifier: Apache-2.0
// Parses random and mutated strings in every grammar. Each result is settings in range, or an error whose texts point into
// the string. TESSERA_FUZZ_STRINGS in the environment sets the number of strings.
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <random>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>

#include <gtest/gtest.h>

#include <tessera/config/grammar.hpp>
#include <tessera/config/paddle_flags.hpp>
#include <tessera/config/pytorch_conf.hpp>
#include <tessera/config/torch_npu_conf.hpp>

#include "../../by_day.hpp"
#include "sound.hpp"

namespace {

using namespace tessera::config;
using error_code = setting_error::error_code;
using config_test::flaw_of;

/// Counts the results: one counter for each error, and one for success at the end.
using tally = std::array<std::size_t, 8>;

template <typename Grammar>
void expect_sound(std::string_view text, tally& count) {
  const auto parsed = parse<Grammar>(text);
  const auto* const why = std::get_if<1>(&parsed);
  const char* const flaw =
      why != nullptr ? flaw_of<Grammar>(*why, text) : flaw_of<Grammar>(std::get<0>(parsed));
  ++count[why != nullptr ? static_cast<std::size_t>(why->code) : count.size() - 1];
  ASSERT_STREQ(flaw, nullptr) << Grammar::name << ": " << text;
}

/// Writes strings from the keys and values of one grammar and from others.
class writer {
 public:
  template <typename Grammar>
  std::string any() {
    std::string text;
    switch (below(4)) {
      case 0:  // letters
        for (std::size_t n = below(24); n > 0; --n) text += letter();
        return text;
      case 1:  // tokens in any order
        for (std::size_t n = below(12); n > 0; --n) text += piece<Grammar>();
        return text;
      case 2: return sentence<Grammar>();
      default: return mutated(sentence<Grammar>());
    }
  }

 private:
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(random_() % n); }
  char letter() { return below(8) == 0 ? static_cast<char>(below(256)) : letters[below(letters.size())]; }
  template <typename Grammar>
  std::string_view key() {
    return Grammar::keys[below(Grammar::keys.size())].name;
  }
  template <typename Grammar>
  std::string_view piece() {
    const std::size_t which = below(3);
    return which == 0 ? key<Grammar>() : which == 1 ? values[below(std::size(values))] : delimiters[below(6)];
  }
  /// The last allowed value of a key that has alternatives.
  static std::string_view last_value(const auto& key) {
    const std::size_t end = key.allowed.find_last_of(", |");
    return end == key.allowed.npos ? key.allowed : key.allowed.substr(end + 1);
  }
  /// Keys with values, most of which do not match.
  template <typename Grammar>
  std::string sentence() {
    const std::string assign(Grammar::assign);
    if constexpr (!Grammar::exclusions.empty()) {
      if (below(16) == 0) {  // few pairs of keys exclude each other
        const auto& pair = Grammar::exclusions[below(Grammar::exclusions.size())];
        std::string text;
        for (const auto& k : Grammar::keys) {
          if (k.name != pair.one && k.name != pair.other) continue;
          text += std::string(k.name) + assign + std::string(last_value(k)) + ",";
        }
        return text;
      }
    }
    std::string text;
    for (std::size_t n = below(5) + 1; n > 0; --n) {
      const auto& k = Grammar::keys[below(Grammar::keys.size())];
      text += std::string(k.name) + assign;
      if (below(3) == 0) {  // an allowed value, if the key has alternatives
        text += below(2) == 0 ? k.allowed.substr(0, k.allowed.find_first_of(",|")) : last_value(k);
      } else {
        text += values[below(std::size(values))];
      }
      if (n > 1 || below(4) == 0) text += ',';
    }
    return text;
  }
  std::string mutated(std::string text) {
    for (std::size_t changes = below(4) + 1; changes > 0; --changes) {
      if (text.empty()) text = letter();
      const std::size_t at = below(text.size());
      switch (below(4)) {
        case 0: text[at] = letter(); break;
        case 1: text.insert(at, 1, letter()); break;
        case 2: text.erase(at, below(8) + 1); break;
        default: text.resize(at);
      }
    }
    return text;
  }

  static constexpr std::string_view letters = std::string_view(",:=[]>| .0129-GgaTF_\t\0", 22);
  static constexpr std::string_view delimiters[] = {",", ":", "[", "]", "=", " "};
  static constexpr std::string_view values[] = {"0",
                                                "1",
                                                "4",
                                                "16",
                                                "20",
                                                "21",
                                                "32",
                                                "64",
                                                "128",
                                                "512",
                                                "016",
                                                "-1",
                                                "0.6",
                                                "0.0",
                                                "1.0",
                                                ".5",
                                                "1e3",
                                                "2G",
                                                "-0.5",
                                                "True",
                                                "False",
                                                "1g",
                                                "native",
                                                "naive_best_fit",
                                                "[64:8,128:2,>:1]",
                                                "[>:4]",
                                                "[]",
                                                "[a:1]",
                                                "0.123456789",
                                                "0.1234567890",
                                                "18446744073709551615",
                                                "18446744073709551616",
                                                "17592186044416",
                                                "99999999999999999999999999G",
                                                "nan",
                                                ""};
  std::mt19937_64 random_{7};
};

std::size_t strings() {
  const char* const setting = std::getenv("TESSERA_FUZZ_STRINGS");
  return setting != nullptr ? std::strtoull(setting, nullptr, 10) : tessera::by_day(20'000u, 200'000u);
}

template <typename Grammar>
class grammars : public testing::Test {};
using all_grammars = testing::Types<pytorch, torch_npu, paddle>;
TYPED_TEST_SUITE(grammars, all_grammars);

// A string written in one grammar is parsed in all.
TYPED_TEST(grammars, parse_any_string) {
  writer write;
  tally count{}, others{};
  for (std::size_t i = 0; i < strings(); ++i) {
    const std::string text = write.template any<TypeParam>();
    expect_sound<TypeParam>(text, count);
    if (!std::is_same_v<TypeParam, pytorch>) expect_sound<pytorch>(text, others);
    if (!std::is_same_v<TypeParam, torch_npu>) expect_sound<torch_npu>(text, others);
    if (!std::is_same_v<TypeParam, paddle>) expect_sound<paddle>(text, others);
    if (this->HasFatalFailure()) return;
  }
  // Every result occurred, except exclusions in a grammar that has none.
  for (std::size_t i = 0; i < count.size(); ++i) {
    const bool never = static_cast<error_code>(i) == error_code::excluded_by && TypeParam::exclusions.empty();
    EXPECT_EQ(count[i] == 0, never) << "answer " << i;
  }
  EXPECT_GT(count.back(), strings() / 100);
}

TYPED_TEST(grammars, parse_any_prefix) {
  std::string all;
  for (const auto& k : TypeParam::keys) all += std::string(k.name) + std::string(TypeParam::assign) + "64,";
  all += std::string(TypeParam::keys[0].name) + std::string(TypeParam::assign) + "[64:8,128:2,>:1],";
  tally count{};
  for (std::size_t n = 0; n <= all.size(); ++n) {
    const std::string beginning = all.substr(0, n);  // a copy, so that reads past its end are detected
    expect_sound<TypeParam>(beginning, count);
  }
  EXPECT_GT(count[static_cast<std::size_t>(error_code::unknown_key)], 0u);
  EXPECT_GT(count[static_cast<std::size_t>(error_code::missing_value)], 0u);
}

}  // namespace
