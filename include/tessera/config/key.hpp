// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include <tessera/core/fraction.hpp>

namespace tessera::config {

/// How a value is written.
enum class form : unsigned char {
  words,         ///< one of those in `value`: what is left of the first comma switches off, all others on
  only_word,     ///< the one in `value`, which switches on
  whole,         ///< a whole number
  power_of_two,  ///< the same, a power of two
  kibibytes,     ///< a whole number without leading zeros, of KiB
  mebibytes,     ///< a whole number of MiB; what exceeds the address space means no bound
  decimal,       ///< digits, and at most 9 of them behind a point
  gibibytes_or_less,   ///< the same in GiB, below 0 for never
  share_or_gibibytes,  ///< a decimal share of the device, or with a G behind it, GiB
  divisions,           ///< a power of two, or a list of them by size
  divisions_or_zero,   ///< the same, where a single 0 is one, too
  list                 ///< in brackets; not looked into
};

template <typename Settings, typename T>
struct maybe_member {
  T Settings::* member = nullptr;
};

/// A member of settings that has one of the types, or none. What a std::variant would be for, which compiles slowly.
template <typename Settings, typename... T>
struct any_member : maybe_member<Settings, T>... {
  constexpr any_member(std::nullptr_t) noexcept {}
  template <typename U>
  constexpr any_member(U Settings::* given) noexcept {
    maybe_member<Settings, U>::member = given;
  }

  template <typename U>
  [[nodiscard]] constexpr U Settings::* as() const noexcept {
    return maybe_member<Settings, U>::member;
  }
  /// Calls f with the member, unless there is none.
  constexpr void visit(auto f) const { ((as<T>() != nullptr ? f(as<T>()) : void()), ...); }
};

/// The most MiB that a size may be which something of that size is made; a bound may be larger.
inline constexpr std::uint64_t max_mebibytes = (std::uint64_t{1} << 40) - 1;
inline constexpr std::string_view below_2_to_40 = "must be less than 2^40";

/// One key of a dialect: where its value goes (a member that is a bool, a size, a fraction or one of `More`), what it may
/// be, and what its documentation says.
template <typename Settings, typename... More>
struct key {
  std::string_view name;
  any_member<Settings, bool, std::size_t, fraction, More...> to;
  form written;
  std::string_view value;      ///< what may be written, in words; for form::words, the words
  std::string_view otherwise;  ///< what counts where it is not written, as it would be written, or in words
  std::string_view effect;
  std::uint64_t least = 0;  ///< in the unit that is written, or billionths
  std::uint64_t most = ~std::uint64_t{0};
  std::string_view rule = {};  ///< what is said of a number outside of these
};

/// Two keys that must not both be set to other than their defaults.
template <typename Key>
struct exclusion {
  Key one;
  Key other;
  std::string_view rule;
};

/// A size that must be at least another one.
template <typename Key>
struct min_size {
  Key size;
  Key bound;
  std::string_view rule;
};

/// How PyTorch and torch_npu write settings, and what both say of keys that both have.
template <typename Key>
struct torch_syntax {
  using key_name = Key;
  static constexpr std::string_view delimiters = ",:[]";
  static constexpr std::string_view assign = ":";
  static constexpr std::string_view assign_rule = "a ':' must follow the key";
  static constexpr std::string_view true_or_false = "must be True or False";
  static constexpr std::string_view at_least_large = "must be at least large_segment_size_mb";
  static constexpr std::array<min_size<Key>, 2> least_sizes{
      {{Key::max_split_size_mb, Key::large_segment_size_mb, at_least_large},
       {Key::max_non_split_rounding_mb, Key::large_segment_size_mb, at_least_large}}};

  /// What a key stands at where only others are written.
  static constexpr void settle(auto& given, auto written) noexcept {
    if (!written(Key::max_non_split_rounding_mb)) given.max_non_split_rounding = given.large_segment_size;
  }
};

}  // namespace tessera::config
