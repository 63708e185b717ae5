// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>
#include <variant>

#include <tessera/config/grammar.hpp>

/// Reads configuration strings. A grammar is a struct that describes the strings of one system:
///
/// | member                      | meaning                                                              |
/// |-----------------------------|----------------------------------------------------------------------|
/// | G::settings                 | a struct whose defaults stand for an empty string                    |
/// | G::name                     | the name of the grammar, for messages                                |
/// | G::variables                | the environment variables that may hold a string; if there are none, |
/// |                             | each key is a variable                                               |
/// | G::keys                     | a table with the definition of each key                              |
/// | G::exclusions               | pairs of keys of which at most one may differ from its default       |
/// | G::min_sizes                | sizes that must be at least as large as another one                  |
/// | G::delimiters               | the characters between keys and values, and between settings         |
/// | G::assign                   | the delimiter between a key and its value                            |
/// | G::assign_rule              | the rule of the error if that one is missing                         |
/// | G::set_dependent_defaults() | sets keys whose default depends on other keys                        |

namespace tessera::inline v0_1::config::detail {

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

/// Reads values from tokens. After the first error, it ignores the rest.
class value_reader {
 public:
  constexpr value_reader(std::string_view text, std::string_view delimiters) noexcept
      : tokens_(text, delimiters) {}

  [[nodiscard]] constexpr bool failed() const noexcept { return failed_; }
  [[nodiscard]] constexpr const setting_error& error() const noexcept { return error_; }

 protected:
  struct range {
    std::uint64_t min;
    std::uint64_t max;
    std::string_view rule;
    [[nodiscard]] constexpr bool contains(std::uint64_t n) const noexcept { return n >= min && n <= max; }
  };

  /// Keeps the first error.
  constexpr void fail(const token& at, error_code code, std::string_view rule,
                      std::string_view other_key = {}) noexcept {
    if (failed_) return;
    failed_ = true;
    const bool in_key = at.offset == key_.offset;
    error_ = {key_.text, in_key ? std::string_view{} : at.text, rule, at.offset, code, other_key};
  }
  constexpr void must_hold(bool condition, const token& at, error_code code, std::string_view rule) noexcept {
    if (!condition) fail(at, code, rule);
  }
  /// The code for a value that is not the number that is asked for: a negative one, or one with other places.
  [[nodiscard]] static constexpr error_code code_of(const token& value) noexcept {
    bool has_digits = false, has_point = false;
    for (const char& c : value.text) {
      const bool is_sign = (c == '-' || c == '+') && &c == value.text.data();
      const bool is_point = c == '.' && !has_point;
      if (c >= '0' && c <= '9')
        has_digits = true;
      else if (!is_sign && !is_point && !is_blank(c))
        return error_code::not_a_number;
      has_point = has_point || is_point;
    }
    return has_digits ? error_code::out_of_range : error_code::not_a_number;
  }
  /// Whether a value is a negative number, which is outside the range of the key rather than not a number.
  [[nodiscard]] static constexpr bool is_negative(const token& value) noexcept {
    return value.text.starts_with('-') && code_of(value) == error_code::out_of_range;
  }
  constexpr bool expect(std::string_view delimiter, error_code code, std::string_view rule) noexcept {
    const token next = tokens_.next();
    must_hold(next.equals(delimiter), next, code, rule);
    return !failed_;
  }
  /// Returns the next token. Fails if there is none. Fails with `code` if it is a delimiter.
  constexpr token next_value(error_code code, std::string_view rule) noexcept {
    const token value = tokens_.next();
    const bool is_missing = value.text.empty() || value.text == ",";
    must_hold(!is_missing, value, error_code::missing_value, rule);
    must_hold(!tokens_.is_delimiter(value), value, code, rule);
    return value;
  }

  /// Reads one of the values in `allowed`. `,` separates groups, and `|` separates the alternatives of a
  /// group.
  ///   Returns:  the index of the group
  constexpr std::size_t read_choice(std::string_view allowed, std::string_view rule) noexcept {
    const token value = next_value(error_code::unknown_value, rule);
    for (std::size_t group = 0; !allowed.empty();) {
      const std::size_t end = allowed.find_first_of(",|");
      if (value.equals(allowed.substr(0, end))) return group;
      if (end == allowed.npos) break;
      group += allowed[end] == ',';
      allowed.remove_prefix(end + (allowed[end] == ',' ? 2 : 1));  // a blank follows a comma
    }
    fail(value, error_code::unknown_value, rule);
    return 0;
  }

  constexpr std::uint64_t read_integer(const range& in, std::string_view rule,
                                       bool allow_leading_zeros = true) noexcept {
    const token value = next_value(error_code::not_a_number, rule);
    const token::number number = value.as_integer();
    const bool has_zeros = value.text.size() > 1 && value.text[0] == '0';
    must_hold(number.valid, value, code_of(value), is_negative(value) ? in.rule : rule);
    must_hold(allow_leading_zeros || !has_zeros, value, error_code::malformed,
              "must be written without leading zeros");
    must_hold(in.contains(number.value), value, error_code::out_of_range, in.rule);
    must_hold(number.fits, value, error_code::out_of_range, "must be less than 2^64");
    return number.value;
  }
  constexpr std::size_t read_mebibytes(const range& in) noexcept {
    const std::uint64_t count = read_integer(in, "must be a whole number of MiB");
    return count > unlimited >> 20 ? unlimited : static_cast<std::size_t>(count) << 20;
  }
  constexpr std::size_t read_power_of_two(const range& in) noexcept {
    const token value = tokens_.peek();
    const std::uint64_t count = read_integer(in, "must be a whole number");
    must_hold(std::has_single_bit(count), value, error_code::out_of_range, in.rule);
    return static_cast<std::size_t>(count);
  }
  constexpr fraction read_decimal(const range& in) noexcept {
    const token value = next_value(error_code::not_a_number, not_decimal);
    const token::number number = value.as_billionths();
    must_hold(number.valid, value, code_of(value), is_negative(value) ? in.rule : not_decimal);
    must_hold(in.contains(number.value), value, error_code::out_of_range, in.rule);
    return {number.value};
  }
  ///   Returns:  bytes; `unlimited` for a negative number
  constexpr std::size_t read_gibibytes_or_never(const range& in) noexcept {
    const token value = next_value(error_code::not_a_number, not_decimal);
    const bool negative = value.text.starts_with('-');
    const token::number number = token{value.text.substr(negative)}.as_billionths();
    must_hold(number.valid, value, code_of(value), not_decimal);
    must_hold(negative || in.contains(number.value), value, error_code::out_of_range, in.rule);
    return negative && number.value > 0 ? unlimited : gibibytes(number.value);
  }
  constexpr memory_limit read_fraction_or_gibibytes() noexcept {
    constexpr std::string_view rule =
        "must be a positive fraction of the device, or a number of GiB with a G";
    const token value = next_value(error_code::not_a_number, rule);
    const bool in_gib = value.text.ends_with('G') || value.text.ends_with('g');
    const token::number number = token{value.text.substr(0, value.text.size() - in_gib)}.as_billionths();
    must_hold(number.valid, value, code_of(value), rule);
    must_hold(number.value > 0, value, error_code::out_of_range, rule);
    return in_gib ? memory_limit(gibibytes(number.value)) : memory_limit(fraction{number.value});
  }

  constexpr divisions read_divisions(bool allow_single_zero) noexcept {
    const token first = tokens_.next();
    if (!first.equals("[")) return divisions::all(division_count(first, allow_single_zero));
    divisions result{};
    std::size_t last_slot = 0;  // of the last size
    bool any_size = false;
    for (token size = tokens_.next(); !failed_ && !size.equals("]"); size = tokens_.next()) {
      const bool is_rest = size.equals(">");
      const std::size_t slot = is_rest ? divisions::slot_count - 1 : slot_of(size);
      if (failed_ || !expect(":", error_code::missing_value, "a ':' must follow the size")) break;
      const std::uint32_t count = division_count(tokens_.next(), true);
      // The first size also covers all smaller sizes; > covers all sizes above the last size.
      const std::size_t first_slot = is_rest ? last_slot + 1 : any_size ? slot : 0;
      for (std::size_t i = first_slot; i <= slot; ++i) result.in_slot[i] = count;
      if (!is_rest) {
        last_slot = slot;
        any_size = true;
      }
      const token after = tokens_.next();
      if (after.equals("]")) break;
      must_hold(after.equals(","), after, error_code::malformed,
                "a ',' must separate entries, and a ']' must end them");
    }
    return result;
  }
  constexpr void skip_list() noexcept {
    constexpr std::string_view rule = "must be a list in brackets";
    token t = tokens_.next();
    must_hold(!t.text.empty(), t, error_code::missing_value, rule);
    must_hold(t.equals("["), t, error_code::malformed, rule);
    while (!failed_ && !t.equals("]")) {
      t = tokens_.next();
      must_hold(!t.text.empty(), t, error_code::malformed, rule);
    }
  }

  tokenizer tokens_;
  token key_{};

 private:
  static constexpr std::string_view not_decimal = "must be a decimal number of at most 9 places";

  [[nodiscard]] static constexpr std::size_t gibibytes(std::uint64_t billionths) noexcept {
    constexpr std::uint64_t one = 1'000'000'000;
    const std::uint64_t whole = billionths / one;
    return whole >= unlimited >> 30 ? unlimited - 1 : (whole << 30) + ((billionths % one) << 30) / one;
  }
  constexpr std::size_t slot_of(const token& size) noexcept {
    constexpr std::string_view rule = "a size must be a power of two in MiB, or >";
    const token::number mib = size.as_integer();
    must_hold(!size.text.empty(), size, error_code::missing_value, rule);
    must_hold(mib.valid, size, code_of(size), rule);
    must_hold(std::has_single_bit(mib.value), size, error_code::out_of_range, rule);
    const auto log2 = static_cast<std::size_t>(std::countr_zero(mib.value));
    return log2 < divisions::slot_count ? log2 : divisions::slot_count - 1;
  }
  constexpr std::uint32_t division_count(const token& value, bool allow_zero) noexcept {
    const std::string_view rule = allow_zero ? "divisions must be 0 or a power of two below 2^32"
                                             : "divisions must be a power of two below 2^32";
    const token::number count = value.as_integer();
    const bool is_missing = value.text.empty() || tokens_.is_delimiter(value);
    const bool is_power = std::has_single_bit(count.value) || (count.value == 0 && allow_zero);
    must_hold(!is_missing, value, error_code::missing_value, rule);
    must_hold(count.valid, value, code_of(value), rule);
    must_hold(is_power && count.value >> 32 == 0, value, error_code::out_of_range, rule);
    return failed_ ? 0 : static_cast<std::uint32_t>(count.value);
  }

  setting_error error_{};
  bool failed_ = false;
};

/// The index of a key in the table; the size of the table if there is no such key.
template <typename Grammar>
[[nodiscard]] constexpr std::size_t key_index(const token& name) noexcept {
  std::size_t index = 0;
  while (index < Grammar::keys.size() && !name.equals(Grammar::keys[index].name)) ++index;
  return index;
}

/// Whether a legal string sets a key.
template <typename Grammar>
[[nodiscard]] constexpr bool sets_key(std::string_view text, std::string_view key) noexcept {
  for (tokenizer tokens(text, Grammar::delimiters); !tokens.at_end();) {
    if (tokens.next().equals(key)) return true;
  }
  return false;
}

/// Reads a configuration string of one grammar.
template <typename Grammar>
class grammar_reader : value_reader {
  using settings = typename Grammar::settings;
  using definition = typename decltype(Grammar::keys)::value_type;
  static constexpr std::size_t count = Grammar::keys.size();

 public:
  constexpr explicit grammar_reader(std::string_view text) noexcept
      : value_reader(text, Grammar::delimiters) {}

  [[nodiscard]] constexpr std::variant<settings, setting_error> read() noexcept {
    while (!failed() && !tokens_.at_end()) read_setting();
    return finish();
  }
  /// Reads the value of one key from a separate string.
  constexpr void read_value(std::size_t key, std::string_view text) noexcept {
    if (failed()) return;
    tokens_ = tokenizer(text, Grammar::delimiters);
    key_ = {Grammar::keys[key].name, ~std::size_t{0}};
    read_value(key);
    must_hold(tokens_.at_end(), tokens_.peek(), error_code::malformed, "nothing may follow the value");
  }
  /// Sets dependent defaults and checks the rules between keys.
  [[nodiscard]] constexpr std::variant<settings, setting_error> finish() noexcept {
    if (!failed()) {
      Grammar::set_dependent_defaults(settings_,
                                      [this](std::string_view key) { return written_[index(key)].present; });
      check_rules_between_keys();
    }
    if (failed()) return error();
    return settings_;
  }

 private:
  /// The position of the last occurrence of a key.
  struct occurrence {
    bool present = false;
    token key{};
    token value{};
  };
  [[nodiscard]] static constexpr std::size_t index(std::string_view key) noexcept {
    return key_index<Grammar>(token{key});
  }

  constexpr void read_setting() noexcept {
    key_ = tokens_.next();
    must_hold(!tokens_.is_delimiter(key_), key_, error_code::malformed, "a key is expected");
    const std::size_t key = key_index<Grammar>(key_);
    must_hold(key < count, key_, error_code::unknown_key, "no such key");
    if (failed() || !expect(Grammar::assign, error_code::missing_value, Grammar::assign_rule)) return;
    read_value(key);
    if (!failed() && !tokens_.at_end()) expect(",", error_code::malformed, "a ',' must separate settings");
  }

  constexpr void read_value(std::size_t index) noexcept {
    const definition& key = Grammar::keys[index];
    written_[index] = {true, key_, tokens_.peek()};
    if (key.format == value_format::ignored_list) return skip_list();
    key.member.visit([&](auto member) {
      using type = std::remove_cvref_t<decltype(settings_.*member)>;
      settings_.*member = read_as<type>(key, {key.min, key.max, key.rule});
    });
  }
  template <typename T>
  constexpr T read_as(const definition& key, const range& in) noexcept {
    if constexpr (std::is_same_v<T, bool>) {
      return read_choice(key.allowed, key.rule) > 0 || key.format == value_format::single_choice;
    } else if constexpr (std::is_same_v<T, fraction>) {
      return read_decimal(in);
    } else if constexpr (std::is_same_v<T, divisions>) {
      return read_divisions(key.format == value_format::divisions_or_zero);
    } else if constexpr (std::is_same_v<T, memory_limit>) {
      return read_fraction_or_gibibytes();
    } else if (key.format == value_format::mebibytes) {
      return read_mebibytes(in);
    } else if (key.format == value_format::power_of_two) {
      return read_power_of_two(in);
    } else if (key.format == value_format::gibibytes_or_never) {
      return read_gibibytes_or_never(in);
    } else if (key.format == value_format::kibibytes) {
      return read_integer(in, "must be a whole number of KiB", false) << 10;
    } else {
      return read_integer(in, "must be a whole number");
    }
  }

  constexpr void check_rules_between_keys() noexcept {
    for (const min_size& min : Grammar::min_sizes) {
      const occurrence& size = written_[index(min.size)];
      key_ = size.key;
      must_hold(!size.present || size_of(min.size) >= size_of(min.bound), size.value,
                error_code::out_of_range, min.rule);
    }
    for (const exclusion& pair : Grammar::exclusions) {
      const std::size_t one = index(pair.one), other = index(pair.other);
      if (is_default(one) || is_default(other)) continue;
      const bool one_is_later = written_[one].key.offset > written_[other].key.offset;
      key_ = written_[one_is_later ? one : other].key;
      fail(key_, error_code::excluded_by, pair.rule, written_[one_is_later ? other : one].key.text);
    }
  }
  [[nodiscard]] constexpr std::size_t size_of(std::string_view key) const noexcept {
    return settings_.*Grammar::keys[index(key)].member.template as<std::size_t>();
  }
  [[nodiscard]] constexpr bool is_default(std::size_t index) const noexcept {
    return Grammar::keys[index].is_equal(settings_, settings{});
  }

  settings settings_{};
  occurrence written_[count]{};
};

}  // namespace tessera::inline v0_1::config::detail

namespace tessera::inline v0_1::config {

/// Parses a configuration string. Choose it when the string is known only at run time. An empty string means
/// the defaults. If a key occurs twice, the last value is used. It is stricter than PyTorch's parser, which
/// does not distinguish delimiters and ignores text after a number.
///
///     using namespace tessera::config;
///     const auto parsed = parse<pytorch>("max_split_size_mb:10");  // less than large_segment_size_mb
///     if (const auto* error = std::get_if<setting_error>(&parsed)) std::puts(bad_setting("--conf", *error).what());
///
///   Returns:  the settings, or the first error, whose texts point into `text`
///   Cost:     linear in the length of `text`; usable in constant expressions
template <typename Grammar>
[[nodiscard]] constexpr std::variant<typename Grammar::settings, setting_error> parse(
    std::string_view text) noexcept {
  return detail::grammar_reader<Grammar>(text).read();
}

/// Parses the settings in an environment variable. Returns the defaults if the variable is not set.
///   Returns:  the settings, or the first error, whose texts point into the variable
template <typename Grammar>
[[nodiscard]] std::variant<typename Grammar::settings, setting_error> read_environment(
    const char* variable) noexcept {
  const char* const text = std::getenv(variable);
  return parse<Grammar>(text != nullptr ? text : "");
}

/// Parses the settings in the variables that the system itself reads. That is the first variable that is set.
/// For Paddle, it is one variable for each key.
///
///     const auto parsed = tessera::config::read_environment<tessera::config::pytorch>();
///     if (const auto* settings = std::get_if<tessera::config::pytorch::settings>(&parsed))
///       std::puts(settings->expandable_segments ? "expandable segments" : "segments");
template <typename Grammar>
[[nodiscard]] std::variant<typename Grammar::settings, setting_error> read_environment() noexcept {
  for (const char* variable : Grammar::variables) {
    if (std::getenv(variable) != nullptr) return read_environment<Grammar>(variable);
  }
  detail::grammar_reader<Grammar> reader("");
  if constexpr (Grammar::variables.empty()) {
    for (std::size_t i = 0; i < Grammar::keys.size(); ++i) {
      const char* const text = std::getenv(Grammar::keys[i].name.data());
      if (text != nullptr) reader.read_value(i, text);
    }
  }
  return reader.finish();
}

}  // namespace tessera::inline v0_1::config

namespace tessera::inline v0_1::config::detail {

/// Names the error when a string that is a template argument is rejected. Compilers print its arguments: the
/// kind of error, the position, the key and the rule. Never defined.
template <error_code Code, std::size_t Offset, auto Key, auto Rule>
struct setting_refused;

/// Copies a text of `Length` characters into a template argument, which compilers print.
template <std::size_t Length>
[[nodiscard]] consteval fixed_string<Length + 1> copy_of(std::string_view text) {
  char chars[Length + 1]{};
  for (std::size_t i = 0; i < Length; ++i) chars[i] = text[i];
  return chars;
}

/// Parses a string that is a template argument. Does not compile if the string is rejected.
template <typename Grammar, auto Text>
[[nodiscard]] consteval typename Grammar::settings settings_in() {
  if constexpr (sizeof(Text.chars) == 1) {
    return {};  // the defaults, without compiling the parser
  } else {
    constexpr auto parsed = parse<Grammar>(std::string_view(Text.chars, sizeof(Text.chars) - 1));
    if constexpr (parsed.index() == 0) {
      return std::get<0>(parsed);
    } else {
      constexpr setting_error error = std::get<1>(parsed);
      return setting_refused<error.code, error.offset, copy_of<error.key.size()>(error.key),
                             copy_of<error.rule.size()>(error.rule)>{};
    }
  }
}

}  // namespace tessera::inline v0_1::config::detail
