// SPDX-License-Identifier: Apache-2.0
// Random and mutated strings in every dialect: each is answered by settings that are in range, or by an error whose words
// are those of the string. TESSERA_FUZZ_STRINGS in the environment says how many there are.
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

#include <tessera/config/dialect.hpp>
#include <tessera/config/paddle.hpp>
#include <tessera/config/pytorch.hpp>
#include <tessera/config/torch_npu.hpp>

#include "sound.hpp"

namespace {

using namespace tessera::config;
using config_test::flaw_of;

/// How many of the strings came to what: each fault, and last no fault.
using tally = std::array<std::size_t, 8>;

template <typename Dialect>
void expect_sound(std::string_view text, tally& count) {
  const auto parsed = parse<Dialect>(text);
  const auto* const why = std::get_if<1>(&parsed);
  const char* const flaw =
      why != nullptr ? flaw_of<Dialect>(*why, text) : flaw_of<Dialect>(std::get<0>(parsed));
  ++count[why != nullptr ? static_cast<std::size_t>(why->what) : count.size() - 1];
  ASSERT_STREQ(flaw, nullptr) << Dialect::name << ": " << text;
}

/// Strings of a dialect, from its own words and from others.
class writer {
 public:
  template <typename Dialect>
  std::string any() {
    std::string text;
    switch (below(4)) {
      case 0:  // letters
        for (std::size_t n = below(24); n > 0; --n) text += letter();
        return text;
      case 1:  // words in any order
        for (std::size_t n = below(12); n > 0; --n) text += piece<Dialect>();
        return text;
      case 2: return sentence<Dialect>();
      default: return mutated(sentence<Dialect>());
    }
  }

 private:
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(random_() % n); }
  char letter() { return below(8) == 0 ? static_cast<char>(below(256)) : letters[below(letters.size())]; }
  template <typename Dialect>
  std::string_view key() {
    return Dialect::keys[below(Dialect::keys.size())].name;
  }
  template <typename Dialect>
  std::string_view piece() {
    const std::size_t which = below(3);
    return which == 0 ? key<Dialect>() : which == 1 ? values[below(std::size(values))] : delimiters[below(6)];
  }
  /// Keys with values, most of which do not go together.
  template <typename Dialect>
  std::string sentence() {
    std::string text;
    for (std::size_t n = below(5) + 1; n > 0; --n) {
      const auto& k = Dialect::keys[below(Dialect::keys.size())];
      text += k.name;
      text += Dialect::assign;
      if (below(3) == 0) {  // one of its words, where it has words
        const std::size_t end = k.value.find_first_of(",|");
        text += below(2) == 0 || end == k.value.npos ? k.value.substr(0, end) : k.value.substr(end + 1);
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
  const char* const said = std::getenv("TESSERA_FUZZ_STRINGS");
  return said != nullptr ? std::strtoull(said, nullptr, 10) : 200'000;
}

template <typename Dialect>
class dialects : public testing::Test {};
using all_dialects = testing::Types<pytorch, torch_npu, paddle>;
TYPED_TEST_SUITE(dialects, all_dialects);

// What is written in one dialect is read in all.
TYPED_TEST(dialects, answer_any_string) {
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
  // Each answer was there, but for the exclusions that a dialect does not have.
  for (std::size_t i = 0; i < count.size(); ++i) {
    const bool never = static_cast<fault>(i) == fault::excluded_by && TypeParam::exclusions.empty();
    EXPECT_EQ(count[i] == 0, never) << "answer " << i;
  }
  EXPECT_GT(count.back(), strings() / 100);
}

TYPED_TEST(dialects, answer_any_beginning) {
  std::string all;
  for (const auto& k : TypeParam::keys) all += std::string(k.name) + std::string(TypeParam::assign) + "64,";
  all += std::string(TypeParam::keys[0].name) + std::string(TypeParam::assign) + "[64:8,128:2,>:1],";
  tally count{};
  for (std::size_t n = 0; n <= all.size(); ++n) {
    const std::string beginning =
        all.substr(0, n);  // a text of its own, so that nothing behind it can be read
    expect_sound<TypeParam>(beginning, count);
  }
  EXPECT_GT(count[static_cast<std::size_t>(fault::unknown_key)], 0u);
  EXPECT_GT(count[static_cast<std::size_t>(fault::missing_value)], 0u);
}

}  // namespace
