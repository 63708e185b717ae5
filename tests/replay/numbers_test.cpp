// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <bit>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <system_error>

#include "by_day.hpp"
#include "tessera_replay/numbers.hpp"

namespace {

using replay::read_real;
using replay::real_text;

TEST(numbers, reads_what_is_a_number) {
  EXPECT_EQ(read_real("0"), 0.0);
  EXPECT_EQ(read_real("0.5"), 0.5);
  EXPECT_EQ(read_real(".5"), 0.5);
  EXPECT_EQ(read_real("5."), 5.0);
  EXPECT_EQ(read_real("-2.25"), -2.25);
  EXPECT_EQ(read_real("1e-3"), 0.001);
  EXPECT_EQ(read_real("1E+3"), 1000.0);
  EXPECT_EQ(read_real("1e-400"), 0.0);
  EXPECT_EQ(read_real("0e999999"), 0.0);
  EXPECT_EQ(read_real("0." + std::string(400, '0') + "25e401"), 2.5);
  EXPECT_EQ(read_real("9007199254740993"), 9007199254740992.0);  // a tie goes to the even one
  EXPECT_EQ(read_real("9007199254740993.0001"), 9007199254740994.0);
  EXPECT_EQ(read_real("4.9e-324"), std::numeric_limits<double>::denorm_min());
  EXPECT_EQ(read_real("1.7976931348623157e308"), std::numeric_limits<double>::max());
  EXPECT_EQ(read_real("1.7976931348623159e308"), std::nullopt);
}

TEST(numbers, refuses_what_is_none) {
  for (const char* const text : {"", ".", "-", "+1", " 1", "1 ", "1e", "1e+", "e1", "0x10", "1.2.3", "1,5",
                                 "--1", "nan", "inf", "infinity", "1e400", "half"})
    EXPECT_EQ(read_real(text), std::nullopt) << text;
  EXPECT_EQ(read_real(std::string("1\0", 2)), std::nullopt);
}

/// Doubles of all sizes, and decimals with few and many digits.
class many_numbers {
 public:
  std::string next() {
    char text[64];
    for (;;) {
      const double value = random_() % 2 == 0 ? std::bit_cast<double>(random_())
                                              : static_cast<double>(random_() % 1'000'000) / 1e6;
      if (!std::isfinite(value)) continue;
      const int digits = static_cast<int>(random_() % 25);
      std::snprintf(text, sizeof text, "%.*g", digits, value);
      if (std::isfinite(std::strtod(text, nullptr))) return text;
    }
  }

 private:
  std::mt19937_64 random_{1};
};

TEST(numbers, are_read_as_the_standard_library_reads_them) {
  many_numbers numbers;
  for (int i = 0; i < tessera::by_day(10'000, 50'000); ++i) {
    const std::string text = numbers.next();
    double expected = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), expected);
    if (error != std::errc{})
      expected = std::strtod(text.c_str(), nullptr);  // from_chars refuses subnormal numbers
    const std::optional<double> read = read_real(text);
    ASSERT_TRUE(read) << text;
    ASSERT_EQ(std::bit_cast<std::uint64_t>(*read), std::bit_cast<std::uint64_t>(expected)) << text;
  }
}

TEST(numbers, are_written_with_the_fewest_digits) {
  EXPECT_EQ(real_text(0), "0");
  EXPECT_EQ(real_text(1), "1");
  EXPECT_EQ(real_text(0.5), "0.5");
  EXPECT_EQ(real_text(0.1), "0.1");
  many_numbers numbers;
  for (int i = 0; i < tessera::by_day(1'000, 5'000); ++i) {
    const double value = *read_real(numbers.next());
    const std::string text = real_text(value);
    ASSERT_EQ(read_real(text), value) << text;
    char shortest[64];
    const auto written = std::to_chars(shortest, std::end(shortest), value, std::chars_format::scientific);
    const auto digits = [](const std::string& number) {
      std::string only;
      for (const char c : number.substr(0, number.find('e')))
        if (c >= '0' && c <= '9') only += c;
      only.erase(0, only.find_first_not_of('0'));
      only.erase(only.find_last_not_of('0') + 1);
      return only.size();
    };
    ASSERT_EQ(digits(text), digits(std::string(shortest, written.ptr))) << text;
  }
}

}  // namespace
