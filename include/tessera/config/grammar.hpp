// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <exception>
#include <string_view>
#include <utility>

#include <tessera/core/bytes.hpp>

/// Errors in configuration strings, and the definitions of keys.

namespace tessera::inline v0_1::config {

/// Describes the first error in a configuration string. Its texts point into that string.
struct setting_error {
  /// The kind of an error.
  enum class error_code : unsigned char {
    malformed,  ///< a delimiter is missing or misplaced
    unknown_key,
    missing_value,
    not_a_number,
    unknown_value,  ///< the key does not allow this value
    out_of_range,
    excluded_by,     ///< conflicts with `other_key`
    not_changeable,  ///< the allocator exists already
    without_effect   ///< no policy reads the key; `other_key` does, if there is one
  };
  static constexpr std::size_t nowhere = ~std::size_t{0};  ///< the offset if there is no string

  std::string_view key;                     ///< as it is written in the string
  std::string_view value;                   ///< empty if the key itself is wrong, or no value follows
  std::string_view rule;                    ///< the rule that is broken
  std::size_t offset = 0;                   ///< in characters from the beginning of the string, or `nowhere`
  error_code code = error_code::malformed;  ///< the kind of the error
  std::string_view other_key{};             ///< the key that excludes this one, or what reads this one
  bool operator==(const setting_error&) const = default;
};

/// Reports a rejected configuration string: source, position, key, value and broken rule. Never allocates.
class bad_setting final : public std::exception {
 public:
  /// `source` names the source of the string, for example an environment variable.
  bad_setting(std::string_view source, const setting_error& error) noexcept {
    append(source);
    if (error.offset != setting_error::nowhere) {
      append(", character ");
      append_number(error.offset);
    }
    if (!error.key.empty()) append(": ");
    append(error.key);
    if (!error.value.empty()) append(" ");
    append(error.value);
    append(": ");
    if (!error.other_key.empty()) {
      append(error.code == setting_error::error_code::without_effect ? "read by " : "excluded by ");
      append(error.other_key);
      append(": ");
    }
    append(error.rule, max_rule);
  }
  [[nodiscard]] const char* what() const noexcept override { return text_; }

 private:
  static constexpr std::size_t max_part = 100, max_rule = 400;

  void append(std::string_view part, std::size_t max = max_part) noexcept {
    // A control character could break the line or change the state of a terminal.
    for (const char c : part.substr(0, max))
      text_[size_++] = static_cast<unsigned char>(c) < ' ' || c == '\x7f' ? '?' : c;
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

  char text_[1024]{};
  std::size_t size_ = 0;
};

}  // namespace tessera::inline v0_1::config

namespace tessera::inline v0_1::config::detail {

using error_code = setting_error::error_code;

using tessera::detail::fixed_string;

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

/// Defines one key: the member that it sets, the values that it allows, and its documentation. The member is
/// a bool, a size, a fraction or one of `More`.
template <typename Settings, typename... More>
struct key_definition {
  using pointer = member_pointer<Settings, bool, std::size_t, fraction, More...>;

  std::string_view name;
  pointer member;
  value_format format;
  std::string_view allowed;        ///< the allowed values, as documentation; for `choice`, the alternatives
  std::string_view default_value;  ///< as it is written in a string, or described
  std::string_view effect;
  std::uint64_t min = 0;  ///< in the unit of the format; billionths for decimals
  std::uint64_t max = ~std::uint64_t{0};
  std::string_view rule = "must be at least 0";  ///< the text for a value outside the range
  /// If this flag is set, a key without effect is no error: strings in use set both.
  bool Settings::* idle_beside = nullptr;

  /// A key that is off by default.
  [[nodiscard]] static constexpr key_definition flag(
      std::string_view name, pointer member, std::string_view effect,
      std::string_view allowed = "False, True", std::string_view default_value = "False",
      std::string_view rule = "must be True or False") noexcept {
    return {name, member, value_format::choice, allowed, default_value, effect, 0, 0, rule};
  }
  /// A fraction from 0 to 1.
  [[nodiscard]] static constexpr key_definition ratio(std::string_view name, pointer member,
                                                      std::string_view default_value,
                                                      std::string_view effect) noexcept {
    return {name, member,        value_format::decimal, "0 to 1", default_value, effect,
            0,    1'000'000'000, "must be from 0 to 1"};
  }
  /// A size in MiB of at least `min` and less than 2^40. Limits may be larger.
  [[nodiscard]] static constexpr key_definition size(
      std::string_view name, pointer member, std::string_view effect, std::string_view allowed = "integer",
      std::string_view default_value = "0", std::uint64_t min = 0,
      std::string_view rule = "must be from 0 to 2^40 - 1") noexcept {
    return {name,   member, value_format::mebibytes,      allowed, default_value,
            effect, min,    (std::uint64_t{1} << 40) - 1, rule};
  }

  /// The name of the reader, which stands before the effect. Empty if policies of a recipe read the key; "none" if nothing does.
  [[nodiscard]] constexpr std::string_view reader() const noexcept {
    const std::size_t end = effect.find(": ");
    return end == effect.npos ? std::string_view{} : effect.substr(0, end);
  }
  /// Whether the key is for pinned host memory. An allocator for the device shares the string.
  [[nodiscard]] constexpr bool is_for_host_memory() const noexcept { return reader().ends_with("_pinned"); }
  /// The error if nothing reads the key.
  [[nodiscard]] constexpr setting_error unread() const noexcept {
    return {
        name,    {}, "no policy of the recipe reads it", setting_error::nowhere, error_code::without_effect,
        reader()};
  }
  [[nodiscard]] constexpr bool is_equal(const Settings& a, const Settings& b) const noexcept {
    bool equal = true;
    member.visit([&](auto m) { equal = a.*m == b.*m; });
    return equal;
  }
  /// Swaps the value of this key between two settings.
  constexpr void swap(Settings& a, Settings& b) const noexcept {
    member.visit([&](auto m) { std::swap(a.*m, b.*m); });
  }
};

/// Two keys of which at most one may differ from its default.
struct exclusion {
  std::string_view one;
  std::string_view other;
  std::string_view rule;
};

/// A size that must be at least as large as the size `bound`.
struct min_size {
  std::string_view size;
  std::string_view bound;
  std::string_view rule;
};

/// The parts of the grammar that PyTorch and torch_npu share.
struct torch_syntax {
  static constexpr std::string_view delimiters = ",:[]";
  static constexpr std::string_view assign = ":";
  static constexpr std::string_view assign_rule = "a ':' must follow the key";
  static constexpr std::string_view at_least_large = "must be at least large_segment_size_mb";
  static constexpr std::array<min_size, 2> min_sizes{
      {{"max_split_size_mb", "large_segment_size_mb", at_least_large},
       {"max_non_split_rounding_mb", "large_segment_size_mb", at_least_large}}};

  /// Sets keys whose default depends on other keys.
  static constexpr void set_dependent_defaults(auto& settings, auto is_written) noexcept {
    if (!is_written("max_non_split_rounding_mb"))
      settings.max_non_split_rounding = settings.large_segment_size;
  }
};

}  // namespace tessera::inline v0_1::config::detail
