// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>

#include <tessera/config/grammar.hpp>
#include <tessera/core/bytes.hpp>

/// Reads configuration strings. A grammar is a struct that describes the strings of one system:
///
///   - `settings`, a struct whose defaults stand for an empty string;
///   - `key_name`, an enumeration, and `keys`, a table with the definition of each enumerator, in order;
///   - `exclusions` and `min_sizes`, the rules between keys;
///   - `delimiters`: `assign` separates a key from its value, and `,` separates settings;
///   - `set_dependent_defaults`, which sets keys whose default depends on other keys.
namespace tessera::config::detail {

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
  };

  constexpr void fail(const token& at, error_code code, std::string_view rule,
                      std::string_view other_key = {}) noexcept {
    if (failed_) return;
    failed_ = true;
    const bool in_key = at.offset == key_.offset;
    error_ = {key_.text, in_key ? std::string_view{} : at.text, rule, at.offset, code, other_key};
  }
  constexpr bool expect(std::string_view delimiter, error_code code, std::string_view rule) noexcept {
    const token next = tokens_.next();
    if (!next.equals(delimiter)) fail(next, code, rule);
    return !failed_;
  }
  /// Returns the next token. Fails if there is none. Fails with `code` if it is a delimiter.
  constexpr token next_value(error_code code, std::string_view rule) noexcept {
    const token value = tokens_.next();
    if (value.text.empty()) fail(value, error_code::missing_value, rule);
    if (tokens_.is_delimiter(value)) fail(value, value.text == "," ? error_code::missing_value : code, rule);
    return value;
  }

  /// Reads one of the values in `allowed`. `,` separates groups, and `|` separates the alternatives of a
  /// group.
  ///   Returns:  the index of the group
  constexpr std::size_t read_choice(std::string_view allowed, std::string_view rule) noexcept {
    const token value = next_value(error_code::unknown_value, rule);
    std::size_t group = 0;
    for (std::size_t begin = 0; begin <= allowed.size();) {
      std::size_t end = begin;
      while (end < allowed.size() && allowed[end] != ',' && allowed[end] != '|') ++end;
      if (value.equals(allowed.substr(begin, end - begin))) return group;
      group += end < allowed.size() && allowed[end] == ',';
      begin = end + 1;
      while (begin < allowed.size() && allowed[begin] == ' ') ++begin;
    }
    fail(value, error_code::unknown_value, rule);
    return 0;
  }

  constexpr std::uint64_t read_integer(const range& in, std::string_view rule,
                                       bool allow_leading_zeros = true) noexcept {
    const token value = next_value(error_code::not_a_number, rule);
    const token::number number = value.as_integer();
    if (!number.valid) {
      fail(value, error_code::not_a_number, rule);
    } else if (!allow_leading_zeros && value.text.size() > 1 && value.text[0] == '0') {
      fail(value, error_code::not_a_number, "must be written without leading zeros");
    } else if (number.value < in.min || number.value > in.max) {
      fail(value, error_code::out_of_range, in.rule);
    } else if (!number.fits) {
      fail(value, error_code::out_of_range, "must be less than 2^64");
    }
    return number.value;
  }
  constexpr std::size_t read_mebibytes(const range& in) noexcept {
    const std::uint64_t count = read_integer(in, "must be a whole number of MiB");
    return count > unlimited >> 20 ? unlimited : static_cast<std::size_t>(count) << 20;
  }
  constexpr std::size_t read_power_of_two(const range& in) noexcept {
    const token value = tokens_.peek();
    const std::uint64_t count = read_integer(in, "must be a whole number");
    if (!std::has_single_bit(count)) fail(value, error_code::out_of_range, in.rule);
    return static_cast<std::size_t>(count);
  }
  constexpr fraction read_decimal(const range& in) noexcept {
    const token value = next_value(error_code::not_a_number, not_decimal);
    const token::number number = value.as_billionths();
    if (!number.valid) {
      fail(value, error_code::not_a_number, not_decimal);
    } else if (number.value < in.min || number.value > in.max) {
      fail(value, error_code::out_of_range, in.rule);
    }
    return {number.value};
  }
  ///   Returns:  bytes; `unlimited` for a negative number
  constexpr std::size_t read_gibibytes_or_never(const range& in) noexcept {
    const token value = next_value(error_code::not_a_number, not_decimal);
    const bool negative = value.text.starts_with('-');
    const token::number number = token{value.text.substr(negative)}.as_billionths();
    if (!number.valid) {
      fail(value, error_code::not_a_number, not_decimal);
    } else if (!negative && number.value > in.max) {
      fail(value, error_code::out_of_range, in.rule);
    }
    return negative && number.value > 0 ? unlimited : gibibytes(number.value);
  }
  constexpr memory_limit read_fraction_or_gibibytes() noexcept {
    constexpr std::string_view rule =
        "must be a positive fraction of the device, or a number of GiB with a G";
    const token value = next_value(error_code::not_a_number, rule);
    const bool in_gib = value.text.ends_with('G') || value.text.ends_with('g');
    const token::number number = token{value.text.substr(0, value.text.size() - in_gib)}.as_billionths();
    if (!number.valid) {
      fail(value, error_code::not_a_number, rule);
    } else if (number.value == 0) {
      fail(value, error_code::out_of_range, rule);
    }
    return in_gib ? memory_limit(gibibytes(number.value)) : memory_limit(fraction{number.value});
  }

  constexpr divisions read_divisions(bool allow_single_zero) noexcept {
    const token first = tokens_.next();
    if (!first.equals("[")) return divisions::all(division_count(first, allow_single_zero));
    divisions result{};
    std::size_t last_slot = 0;  // of the last size
    bool any_size = false;
    for (token size = tokens_.next(); !failed_ && !size.equals("]"); size = tokens_.next()) {
      const bool rest = size.equals(">");
      const std::size_t slot = rest ? divisions::slots - 1 : slot_of(size);
      if (failed_ || !expect(":", error_code::missing_value, "a ':' must follow the size")) break;
      const std::uint32_t count = division_count(tokens_.next(), true);
      // The first size also covers all smaller sizes; > covers all sizes above the last size.
      const std::size_t first_slot = rest ? last_slot + 1 : any_size ? slot : 0;
      for (std::size_t i = first_slot; i <= slot; ++i) result.in_slot[i] = count;
      if (!rest) {
        last_slot = slot;
        any_size = true;
      }
      const token after = tokens_.next();
      if (after.equals("]")) break;
      if (!after.equals(","))
        fail(after, error_code::malformed, "a ',' must separate entries, and a ']' must end them");
    }
    return result;
  }
  constexpr void skip_list() noexcept {
    constexpr std::string_view rule = "must be a list in brackets";
    const token first = tokens_.next();
    if (!first.equals("["))
      return fail(first, first.text.empty() ? error_code::missing_value : error_code::malformed, rule);
    for (token t = tokens_.next(); !t.equals("]"); t = tokens_.next()) {
      if (t.text.empty()) return fail(t, error_code::malformed, rule);
    }
  }

  tokenizer tokens_;
  token key_{};

 private:
  static constexpr std::string_view not_decimal = "must be a decimal number of at most 9 places";
  static constexpr std::string_view size_rule = "a size must be a power of two in MiB, or >";

  [[nodiscard]] static constexpr std::size_t gibibytes(std::uint64_t billionths) noexcept {
    constexpr std::uint64_t one = 1'000'000'000;
    const std::uint64_t whole = billionths / one;
    return whole >= unlimited >> 30 ? unlimited - 1 : (whole << 30) + ((billionths % one) << 30) / one;
  }
  constexpr std::size_t slot_of(const token& size) noexcept {
    const token::number mib = size.as_integer();
    if (size.text.empty()) {
      fail(size, error_code::missing_value, size_rule);
    } else if (!mib.valid) {
      fail(size, error_code::not_a_number, size_rule);
    } else if (!std::has_single_bit(mib.value)) {
      fail(size, error_code::out_of_range, size_rule);
    }
    const auto log2 = static_cast<std::size_t>(std::countr_zero(mib.value));
    return log2 < divisions::slots ? log2 : divisions::slots - 1;
  }
  constexpr std::uint32_t division_count(const token& value, bool allow_zero) noexcept {
    const std::string_view rule = allow_zero ? "divisions must be 0 or a power of two below 2^32"
                                             : "divisions must be a power of two below 2^32";
    const token::number count = value.as_integer();
    const bool valid = std::has_single_bit(count.value) || (count.value == 0 && allow_zero);
    if (value.text.empty() || tokens_.is_delimiter(value)) {
      fail(value, error_code::missing_value, rule);
    } else if (!count.valid) {
      fail(value, error_code::not_a_number, rule);
    } else if (count.value >= std::uint64_t{1} << 32 || !valid) {
      fail(value, error_code::out_of_range, rule);
    }
    return failed_ ? 0 : static_cast<std::uint32_t>(count.value);
  }

  setting_error error_{};
  bool failed_ = false;
};

/// Whether a key differs from its default.
template <typename Grammar>
[[nodiscard]] constexpr bool differs_from_default(const typename Grammar::settings& settings,
                                                  typename Grammar::key_name key) noexcept {
  bool differs = false;
  Grammar::keys[static_cast<std::size_t>(key)].member.visit(
      [&](auto member) { differs = !(settings.*member == typename Grammar::settings{}.*member); });
  return differs;
}

/// The index of a key in the table; the size of the table if there is no such key.
template <typename Grammar>
[[nodiscard]] constexpr std::size_t key_index(const token& name) noexcept {
  std::size_t index = 0;
  while (index < Grammar::keys.size() && !name.equals(Grammar::keys[index].name)) ++index;
  return index;
}

/// Swaps the value of one key between two settings.
///   Returns:  false if both had the same value
template <typename Settings, typename... More>
[[nodiscard]] constexpr bool swap_setting(const key_definition<Settings, More...>& key, Settings& one,
                                          Settings& other) noexcept {
  bool differ = false;
  key.member.visit([&](auto member) {
    differ = !(one.*member == other.*member);
    if (differ) std::swap(one.*member, other.*member);
  });
  return differ;
}

/// Reads a configuration string of one grammar.
template <typename Grammar>
class grammar_reader : value_reader {
  using settings = typename Grammar::settings;
  using key_name = typename Grammar::key_name;
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
    written_[key] = {true, key_, tokens_.peek()};
    read_value(Grammar::keys[key]);
    if (!tokens_.at_end()) fail(tokens_.next(), error_code::malformed, "nothing may follow the value");
  }
  /// Sets dependent defaults and checks the rules between keys.
  [[nodiscard]] constexpr std::variant<settings, setting_error> finish() noexcept {
    if (!failed()) {
      Grammar::set_dependent_defaults(settings_, [this](key_name k) { return written_[index(k)].present; });
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
  [[nodiscard]] static constexpr std::size_t index(key_name k) noexcept {
    return static_cast<std::size_t>(k);
  }

  constexpr void read_setting() noexcept {
    key_ = tokens_.next();
    const token key = key_;
    if (tokens_.is_delimiter(key)) return fail(key, error_code::malformed, "a key is expected");
    const std::size_t found = key_index<Grammar>(key);
    if (found == count) return fail(key, error_code::unknown_key, "no such key");
    if (!expect(Grammar::assign, error_code::missing_value, Grammar::assign_rule)) return;
    written_[found] = {true, key, tokens_.peek()};
    read_value(Grammar::keys[found]);
    if (!failed() && !tokens_.at_end()) expect(",", error_code::malformed, "a ',' must separate settings");
  }

  constexpr void read_value(const definition& key) noexcept {
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
    for (const auto& min : Grammar::min_sizes) {
      const occurrence& size = written_[index(min.size)];
      key_ = size.key;
      if (size.present && size_of(min.size) < size_of(min.bound))
        fail(size.value, error_code::out_of_range, min.rule);
    }
    for (const auto& pair : Grammar::exclusions) {
      if (!differs_from_default<Grammar>(settings_, pair.one)) continue;
      if (!differs_from_default<Grammar>(settings_, pair.other)) continue;
      const occurrence& one = written_[index(pair.one)];
      const occurrence& other = written_[index(pair.other)];
      const bool one_is_later = one.key.offset > other.key.offset;
      key_ = one_is_later ? one.key : other.key;
      fail(key_, error_code::excluded_by, pair.rule, one_is_later ? other.key.text : one.key.text);
    }
  }
  [[nodiscard]] constexpr std::size_t size_of(key_name k) const noexcept {
    return settings_.*Grammar::keys[index(k)].member.template as<std::size_t>();
  }

  settings settings_{};
  occurrence written_[count]{};
};

}  // namespace tessera::config::detail

namespace tessera::config {

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

namespace detail {

/// Names the error when a string that is a template argument is rejected. Compilers print its arguments: the
/// error, the key (character by character if it is unknown), the key that excludes it, and the offset. Never
/// defined.
template <error_code Code, auto... Details>
struct setting_refused;

/// Parses a string that is a template argument. Does not compile if the string is rejected.
template <typename Grammar, auto Text>
[[nodiscard]] consteval typename Grammar::settings settings_in() {
  using key_name = typename Grammar::key_name;
  constexpr auto name = [](std::string_view key) {
    return static_cast<key_name>(key_index<Grammar>(token{key}));
  };
  constexpr auto parsed = parse<Grammar>(Text.view());
  if constexpr (parsed.index() == 0) {
    return std::get<0>(parsed);
  } else {
    constexpr setting_error error = std::get<1>(parsed);
    if constexpr (key_index<Grammar>(token{error.key}) == Grammar::keys.size()) {
      return [error]<std::size_t... Index>(std::index_sequence<Index...>) {
        return setting_refused<error.code, error.key[Index]..., error.offset>{};
      }(std::make_index_sequence<error.key.size()>{});
    } else if constexpr (error.code == error_code::excluded_by) {
      return setting_refused<error.code, name(error.key), name(error.other_key), error.offset>{};
    } else {
      return setting_refused<error.code, name(error.key), error.offset>{};
    }
  }
}

}  // namespace detail

}  // namespace tessera::config
