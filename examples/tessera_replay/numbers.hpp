// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

/// Numbers with a point. They need no std::from_chars for double, which libc++ 13 lacks, and no std::strtod, which does not work in
/// WebAssembly with addresses of 64 bits.
namespace replay {

/// A natural number of any size.
class natural {
 public:
  void multiply_and_add(std::uint32_t factor, std::uint32_t added) {
    std::uint64_t carry = added;
    for (std::uint32_t& limb : limbs_) {
      carry += std::uint64_t{limb} * factor;
      limb = static_cast<std::uint32_t>(carry);
      carry >>= 32;
    }
    if (carry != 0) limbs_.push_back(static_cast<std::uint32_t>(carry));
  }
  /// Returns this number times `factor` times 2^shift.
  [[nodiscard]] natural times(std::uint64_t factor, std::size_t shift) const {
    natural low = *this, made;
    low.multiply_and_add(static_cast<std::uint32_t>(factor), 0);
    natural high = *this;
    high.multiply_and_add(static_cast<std::uint32_t>(factor >> 32), 0);
    made.limbs_.assign(std::max(low.limbs_.size(), high.limbs_.size() + 1) + 1 + shift / 32, 0);
    made.add(low, shift / 32);
    made.add(high, shift / 32 + 1);
    made.multiply_and_add(std::uint32_t{1} << (shift % 32), 0);
    made.trim();
    return made;
  }
  /// Returns -1, 0 or 1 if this number is less than, equal to or greater than another.
  ///   Requires:  both are results of `times`
  [[nodiscard]] int compare(const natural& other) const {
    if (limbs_.size() != other.limbs_.size()) return limbs_.size() < other.limbs_.size() ? -1 : 1;
    for (std::size_t i = limbs_.size(); i-- > 0;) {
      if (limbs_[i] != other.limbs_[i]) return limbs_[i] < other.limbs_[i] ? -1 : 1;
    }
    return 0;
  }

 private:
  void add(const natural& other, std::size_t from) {
    std::uint64_t carry = 0;
    for (std::size_t i = from; i < limbs_.size(); ++i) {
      carry += limbs_[i];
      if (i - from < other.limbs_.size()) carry += other.limbs_[i - from];
      limbs_[i] = static_cast<std::uint32_t>(carry);
      carry >>= 32;
    }
  }
  void trim() {
    while (!limbs_.empty() && limbs_.back() == 0) limbs_.pop_back();
  }

  std::vector<std::uint32_t> limbs_;  // the lowest first
};

/// Returns the double that is nearest to digits times 10^exponent; with a tie, the one whose last bit is 0. Bisects the doubles, whose
/// bits are in the order of their values.
///   Returns:  nothing if the number is too large for a double
///   Requires:  `digits` has digits only
[[nodiscard]] inline std::optional<double> nearest_double(std::string_view digits, int exponent) {
  natural value, scale;  // the number is value / scale
  for (const char c : digits) value.multiply_and_add(10, static_cast<std::uint32_t>(c - '0'));
  scale.multiply_and_add(0, 1);
  for (int i = 0; i < exponent; ++i) value.multiply_and_add(10, 0);
  for (int i = 0; i > exponent; --i) scale.multiply_and_add(10, 0);
  constexpr std::uint64_t infinite = std::uint64_t{0x7ff} << 52;
  std::uint64_t low = 0, high = infinite;
  while (low < high) {
    // Compares the number with the middle between a double and the next: odd * 2^power.
    const std::uint64_t bits = low + (high - low) / 2;
    const int biased = static_cast<int>(bits >> 52);
    const std::uint64_t fraction = bits & ((std::uint64_t{1} << 52) - 1);
    const std::uint64_t odd = 2 * (fraction | (biased == 0 ? 0 : std::uint64_t{1} << 52)) + 1;
    const int power = std::max(biased, 1) - 1076;
    const natural left = value.times(1, static_cast<std::size_t>(std::max(-power, 0)));
    const int order = left.compare(scale.times(odd, static_cast<std::size_t>(std::max(power, 0))));
    const bool is_even = (bits & 1) == 0;
    if (order < 0 || (order == 0 && is_even)) {
      high = bits;
    } else {
      low = bits + 1;
    }
  }
  if (low == infinite) return {};
  return __builtin_bit_cast(double, low);
}

/// Reads a decimal number, such as "0.5", "-2" or "1e-3". Rounds to the nearest double.
///   Returns:  nothing if the text is something else, or if the number is too large for a double
[[nodiscard]] inline std::optional<double> read_real(std::string_view text) {
  const bool is_negative = text.starts_with('-');
  if (is_negative) text.remove_prefix(1);
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  std::string digits;
  bool has_digits = false, has_point = false;
  int exponent = 0;
  constexpr int far = 100'000;  // an exponent that no number of digits of a command line makes up for
  std::size_t at = 0;
  for (; at < text.size() && (is_digit(text[at]) || (text[at] == '.' && !has_point)); ++at) {
    has_point = has_point || text[at] == '.';
    if (text[at] == '.') continue;
    has_digits = true;
    if (has_point) --exponent;
    if (text[at] != '0' || !digits.empty()) digits += text[at];
  }
  if (!has_digits || digits.size() > far || exponent < -far) return {};
  if (at < text.size() && (text[at] == 'e' || text[at] == 'E')) {
    ++at;
    const bool is_small = at < text.size() && text[at] == '-';
    if (at < text.size() && (text[at] == '-' || text[at] == '+')) ++at;
    if (at == text.size()) return {};
    int written = 0;
    for (; at < text.size() && is_digit(text[at]); ++at)
      written = std::min(10 * written + (text[at] - '0'), 3 * far);
    exponent += is_small ? -written : written;
  }
  if (at != text.size()) return {};
  // The number is at least 10^(magnitude - 1), and less than 10^magnitude. The largest double is below 10^309.
  const int magnitude = static_cast<int>(digits.size()) + exponent;
  std::optional<double> found = 0.0;
  if (!digits.empty() && magnitude > 309) return {};
  if (!digits.empty() && magnitude > -330) found = nearest_double(digits, exponent);
  if (found && is_negative) found = -*found;
  return found;
}

/// Formats a number with the fewest digits that read_real reads as the same number.
[[nodiscard]] inline std::string real_text(double value) {
  char text[32];
  for (int digits = 1; digits <= 17; ++digits) {
    std::snprintf(text, sizeof text, "%.*g", digits, value);
    if (read_real(text) == value) break;
  }
  return text;
}

}  // namespace replay
