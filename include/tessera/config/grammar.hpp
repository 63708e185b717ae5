// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <string_view>

#include <tessera/core/bytes.hpp>

/// Errors in configuration strings, and the parts of a grammar: tokens, value formats and definitions of
/// keys.
namespace tessera::config {

/// The kind of error in a setting.
enum class error_code : unsigned char {
  malformed,  ///< a delimiter is missing or misplaced
  unknown_key,
  missing_value,
  not_a_number,
  unknown_value,  ///< the key does not allow this value
  out_of_range,
  excluded_by  ///< conflicts with another key, `setting_error::other_key`
};

/// Describes the first error in a configuration string. Its texts point into that string.
struct setting_error {
  std::string_view key;
  std::string_view value;  ///< empty if the key itself is wrong, or no value follows
  std::string_view rule;   ///< the rule that is broken
  std::size_t offset = 0;  ///< in characters from the beginning of the string
  error_code code = error_code::malformed;
  std::string_view other_key{};  ///< the key that excludes this one
  bool operator==(const setting_error&) const = default;
};

/// Holds a string as a template argument, as in `pytorch<"max_split_size_mb:128">`.
template <std::size_t Size>
struct fixed_string {
  char chars[Size]{};

  consteval fixed_string(const char (&literal)[Size]) noexcept {
    for (std::size_t i = 0; i < Size; ++i) chars[i] = literal[i];
  }
  [[nodiscard]] constexpr std::string_view view() const noexcept { return {chars, Size - 1}; }
};

namespace detail {

[[nodiscard]] constexpr std::string_view describe(error_code code) noexcept {
  switch (code) {
    case error_code::unknown_key: return "unknown key";
    case error_code::missing_value: return "missing value";
    case error_code::not_a_number: return "not a number";
    case error_code::unknown_value: return "unknown value";
    case error_code::out_of_range: return "out of range";
    case error_code::excluded_by: return "excluded by ";
    case error_code::malformed: break;
  }
  return "malformed";
}

}  // namespace detail

/// Reports a rejected configuration string: source, position, key, value, error and broken rule. Never
/// allocates.
class bad_setting final : public std::exception {
 public:
  /// `source` names the source of the string, for example an environment variable.
  bad_setting(std::string_view source, const setting_error& error) noexcept {
    append(source);
    if (!error.key.empty()) {
      append(", character ");
      append_number(error.offset);
      append(": ");
      append(error.key);
    }
    if (!error.value.empty()) append(" ");
    append(error.value);
    append(": ");
    append(detail::describe(error.code));
    append(error.other_key);
    append(": ");
    append(error.rule);
  }
  [[nodiscard]] const char* what() const noexcept override { return text_; }

 private:
  static constexpr std::size_t max_part = 100;

  void append(std::string_view part) noexcept {
    // A control character could break the line or change the state of a terminal.
    for (const char c : part.substr(0, max_part))
      text_[size_++] = (c >= 0 && c < ' ') || c == '\x7f' ? '?' : c;
  }
  void append_number(std::size_t number) noexcept {
    char digits[20];
    std::size_t first = sizeof digits;
    do {
      digits[--first] = static_cast<char>('0' + number % 10);
      number /= 10;
    } while (number > 0);
    append({digits + first, sizeof digits - first});
  }

  char text_[768]{};
  std::size_t size_ = 0;
};

namespace detail {

[[nodiscard]] constexpr bool is_blank(char c) noexcept { return c == ' ' || (c >= '\t' && c <= '\r'); }

/// A delimiter, or the characters between two delimiters. Empty at the end of the string.
struct token {
  std::string_view text;
  std::size_t offset = 0;

  /// Whether the token equals `expected`. Ignores blanks inside the token.
  [[nodiscard]] constexpr bool equals(std::string_view expected) const noexcept {
    std::size_t matched = 0;
    for (const char c : text) {
      if (is_blank(c)) continue;
      if (matched == expected.size() || expected[matched] != c) return false;
      ++matched;
    }
    return matched == expected.size();
  }

  /// A parsed number. `value` saturates if the number does not fit.
  struct number {
    std::uint64_t value = 0;
    bool valid = false;
    bool fits = true;

    constexpr void append(char digit) noexcept {
      constexpr std::uint64_t max = ~std::uint64_t{0};
      const auto next = static_cast<std::uint64_t>(digit - '0');
      fits = fits && value <= (max - next) / 10;
      value = fits ? value * 10 + next : max;
    }
  };

  /// Reads digits only.
  [[nodiscard]] constexpr number as_integer() const noexcept {
    number result;
    for (const char c : text) {
      if (is_blank(c)) continue;
      if (c < '0' || c > '9') return {};
      result.append(c);
      result.valid = true;
    }
    return result;
  }
  /// Reads a decimal number in billionths: digits, with at most 9 of them after a point.
  [[nodiscard]] constexpr number as_billionths() const noexcept {
    number result;
    bool after_point = false;
    std::size_t places = 0;
    for (const char c : text) {
      if (is_blank(c)) continue;
      if (c == '.' && !after_point) {
        after_point = true;
        continue;
      }
      if (c < '0' || c > '9' || places == 9) return {};
      result.append(c);
      result.valid = true;
      places += after_point;
    }
    for (; places < 9; ++places) result.append('0');
    return result;
  }
};

/// Splits a configuration string into tokens and drops the blanks around them.
///   Source:  PyTorch's ConfigTokenizer
class tokenizer {
 public:
  constexpr tokenizer(std::string_view text, std::string_view delimiters) noexcept
      : text_(text), delimiters_(delimiters) {
    skip_blanks();
  }

  [[nodiscard]] constexpr bool at_end() const noexcept { return offset_ == text_.size(); }
  [[nodiscard]] constexpr bool is_delimiter(const token& t) const noexcept {
    return t.text.size() == 1 && is_delimiter(t.text[0]);
  }

  /// Returns the next token without consuming it.
  [[nodiscard]] constexpr token peek() const noexcept {
    tokenizer copy = *this;
    return copy.next();
  }
  constexpr token next() noexcept {
    const std::size_t begin = offset_;
    if (!at_end() && is_delimiter(text_[offset_])) {
      ++offset_;
    } else {
      while (!at_end() && !is_delimiter(text_[offset_])) ++offset_;
    }
    std::size_t end = offset_;
    while (end > begin && is_blank(text_[end - 1])) --end;
    skip_blanks();
    return {text_.substr(begin, end - begin), begin};
  }

 private:
  [[nodiscard]] constexpr bool is_delimiter(char c) const noexcept {
    return delimiters_.find(c) != std::string_view::npos;
  }
  constexpr void skip_blanks() noexcept {
    while (!at_end() && is_blank(text_[offset_])) ++offset_;
  }

  std::string_view text_;
  std::string_view delimiters_;
  std::size_t offset_ = 0;
};

/// The format of a value.
enum class value_format : unsigned char {
  choice,         ///< a value in `allowed`: values before the first comma switch off, other values on
  single_choice,  ///< only the value in `allowed`, which switches on
  integer,
  power_of_two,
  kibibytes,              ///< an integer in KiB, without leading zeros
  mebibytes,              ///< an integer in MiB; `unlimited` if it exceeds the address space
  decimal,                ///< digits, with at most 9 of them after a point
  gibibytes_or_never,     ///< a decimal number in GiB; a negative number means never
  fraction_or_gibibytes,  ///< a decimal fraction of the device; in GiB if a G follows
  divisions,              ///< a power of two, or a list of them by size
  divisions_or_zero,      ///< like `divisions`, but also a single 0
  ignored_list            ///< a list in brackets, which is skipped
};

template <typename Settings, typename T>
struct typed_member {
  T Settings::* pointer = nullptr;
};

/// Points to a member of `Settings` of one of the types `T`, or to none. Replaces a std::variant, which
/// compiles slowly.
template <typename Settings, typename... T>
struct member_pointer : typed_member<Settings, T>... {
  constexpr member_pointer(std::nullptr_t) noexcept {}
  template <typename U>
  constexpr member_pointer(U Settings::* member) noexcept {
    typed_member<Settings, U>::pointer = member;
  }

  template <typename U>
  [[nodiscard]] constexpr U Settings::* as() const noexcept {
    return typed_member<Settings, U>::pointer;
  }
  /// Calls f with the member, if there is one.
  constexpr void visit(auto f) const { ((as<T>() != nullptr ? f(as<T>()) : void()), ...); }
};

/// The largest size in MiB for a segment or chunk. Limits may be larger.
inline constexpr std::uint64_t max_mebibytes = (std::uint64_t{1} << 40) - 1;
inline constexpr std::string_view below_2_to_40 = "must be less than 2^40";

/// Defines one key: the member that it sets, the values that it allows, and its documentation. The member is
/// a bool, a size, a fraction or one of `More`.
template <typename Settings, typename... More>
struct key_definition {
  std::string_view name;
  member_pointer<Settings, bool, std::size_t, fraction, More...> member;
  value_format format;
  std::string_view allowed;        ///< the allowed values, as documentation; for `choice`, the alternatives
  std::string_view default_value;  ///< as it is written in a string, or described
  std::string_view effect;
  std::uint64_t min = 0;  ///< in the unit of the format; billionths for decimals
  std::uint64_t max = ~std::uint64_t{0};
  std::string_view rule = {};  ///< the text for a value outside the range
};

/// Two keys of which at most one may differ from its default.
template <typename Key>
struct exclusion {
  Key one;
  Key other;
  std::string_view rule;
};

/// A size that must be at least as large as the size `bound`.
template <typename Key>
struct min_size {
  Key size;
  Key bound;
  std::string_view rule;
};

/// The parts of the grammar that PyTorch and torch_npu share.
template <typename Key>
struct torch_syntax {
  using key_name = Key;
  static constexpr std::string_view delimiters = ",:[]";
  static constexpr std::string_view assign = ":";
  static constexpr std::string_view assign_rule = "a ':' must follow the key";
  static constexpr std::string_view true_or_false = "must be True or False";
  static constexpr std::string_view at_least_large = "must be at least large_segment_size_mb";
  static constexpr std::array<min_size<Key>, 2> min_sizes{
      {{Key::max_split_size_mb, Key::large_segment_size_mb, at_least_large},
       {Key::max_non_split_rounding_mb, Key::large_segment_size_mb, at_least_large}}};

  /// Sets keys whose default depends on other keys.
  static constexpr void set_dependent_defaults(auto& settings, auto is_written) noexcept {
    if (!is_written(Key::max_non_split_rounding_mb))
      settings.max_non_split_rounding = settings.large_segment_size;
  }
};

}  // namespace detail

}  // namespace tessera::config
