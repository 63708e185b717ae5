// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tessera::config {

/// What is wrong with a setting.
enum class fault : unsigned char {
  malformed,  ///< a delimiter is missing, or where it should not be
  unknown_key,
  missing_value,
  not_a_number,
  not_one_of_its_words,
  out_of_range,
  excluded_by  ///< another setting, which is named
};

[[nodiscard]] constexpr std::string_view words_of(fault what) noexcept {
  switch (what) {
    case fault::unknown_key: return "unknown key";
    case fault::missing_value: return "missing value";
    case fault::not_a_number: return "not a number";
    case fault::not_one_of_its_words: return "no such word";
    case fault::out_of_range: return "out of range";
    case fault::excluded_by: return "excluded by ";
    case fault::malformed: break;
  }
  return "malformed";
}

/// Why a configuration string is refused.
struct setting_error {
  std::string_view key;
  std::string_view value;  ///< empty where the key itself is wrong, or nothing follows
  std::string_view rule;
  std::size_t at = 0;  ///< offset in the string, in characters
  fault what = fault::malformed;
  std::string_view other{};  ///< the key that excludes it
  bool operator==(const setting_error&) const = default;
};

/// A piece of a configuration string: a delimiter, or the characters between two of them. Empty at the end.
struct word {
  std::string_view text;
  std::size_t at = 0;

  [[nodiscard]] static constexpr bool is_blank(char c) noexcept {
    return c == ' ' || (c >= '\t' && c <= '\r');
  }

  /// Whether the word, blanks inside it left out, reads `wanted`.
  [[nodiscard]] constexpr bool text_is(std::string_view wanted) const noexcept {
    std::size_t matched = 0;
    for (char c : text) {
      if (is_blank(c)) continue;
      if (matched == wanted.size() || wanted[matched] != c) return false;
      ++matched;
    }
    return matched == wanted.size();
  }
  /// A number as it is read; where it does not fit, `value` is the largest that does.
  struct number {
    std::uint64_t value = 0;
    bool is = false;
    bool fits = true;

    constexpr void append(char digit) noexcept {
      constexpr std::uint64_t most = ~std::uint64_t{0};
      const auto next = static_cast<std::uint64_t>(digit - '0');
      fits = fits && value <= (most - next) / 10;
      value = fits ? value * 10 + next : most;
    }
  };

  /// Digits alone.
  [[nodiscard]] constexpr number as_integer() const noexcept {
    number read;
    for (char c : text) {
      if (is_blank(c)) continue;
      if (c < '0' || c > '9') return {};
      read.append(c);
      read.is = true;
    }
    return read;
  }
  /// A decimal number in billionths: digits, and at most 9 of them behind a point.
  [[nodiscard]] constexpr number as_billionths() const noexcept {
    number read;
    bool point = false;
    std::size_t places = 0;
    for (char c : text) {
      if (is_blank(c)) continue;
      if (c == '.' && !point) {
        point = true;
        continue;
      }
      if (c < '0' || c > '9' || places == 9) return {};
      read.append(c);
      read.is = true;
      places += point;
    }
    for (; places < 9; ++places) read.append('0');
    return read;
  }
};

/// Cuts a configuration string into words; blanks around words are dropped.
///   Source:  PyTorch's ConfigTokenizer
class word_reader {
 public:
  constexpr word_reader(std::string_view text, std::string_view delimiters) noexcept
      : text_(text), delimiters_(delimiters) {
    skip_blanks();
  }

  [[nodiscard]] constexpr bool at_end() const noexcept { return at_ == text_.size(); }
  [[nodiscard]] constexpr bool is_delimiter(const word& w) const noexcept {
    return w.text.size() == 1 && is_delimiter(w.text[0]);
  }

  /// The next word, which stays the next.
  [[nodiscard]] constexpr word ahead() const noexcept {
    word_reader copy = *this;
    return copy.next();
  }
  constexpr word next() noexcept {
    const std::size_t begin = at_;
    if (!at_end() && is_delimiter(text_[at_])) {
      ++at_;
    } else {
      while (!at_end() && !is_delimiter(text_[at_])) ++at_;
    }
    std::size_t end = at_;
    while (end > begin && word::is_blank(text_[end - 1])) --end;
    skip_blanks();
    return {text_.substr(begin, end - begin), begin};
  }

 private:
  [[nodiscard]] constexpr bool is_delimiter(char c) const noexcept {
    return delimiters_.find(c) != std::string_view::npos;
  }
  constexpr void skip_blanks() noexcept {
    while (!at_end() && word::is_blank(text_[at_])) ++at_;
  }

  std::string_view text_;
  std::string_view delimiters_;
  std::size_t at_ = 0;
};

}  // namespace tessera::config
