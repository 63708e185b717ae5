// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstddef>
#include <string_view>

#include <tessera/config/grammar.hpp>
#include <tessera/config/parse.hpp>
#include <tessera/core/bytes.hpp>

/// Checks the result of a settings parser for any text.
namespace config_test {

using namespace tessera::config;
using error_code = setting_error::error_code;
using tessera::divisions;
using tessera::fraction;
using tessera::memory_limit;

inline bool lies_in(std::string_view part, std::string_view whole) {
  return part.data() >= whole.data() && part.data() + part.size() <= whole.data() + whole.size();
}

template <typename Key>
bool is_in_range(const Key&, bool) {
  return true;
}
template <typename Key>
bool is_in_range(const Key& k, std::size_t size) {
  switch (k.format) {
    case detail::value_format::mebibytes:
      return size == tessera::unlimited ||
             (size % (1u << 20) == 0 && size >> 20 >= k.min && size >> 20 <= k.max);
    case detail::value_format::kibibytes:
      return size % 1024 == 0 && size / 1024 >= k.min && size / 1024 <= k.max;
    case detail::value_format::power_of_two:
      return std::has_single_bit(size) && size >= k.min && size <= k.max;
    case detail::value_format::gibibytes_or_never:
      return size == tessera::unlimited || size < std::size_t{1} << 60;
    default: return size >= k.min && size <= k.max;
  }
}
template <typename Key>
bool is_in_range(const Key& k, fraction share) {
  return share.billionths >= k.min && share.billionths <= k.max;
}
template <typename Key>
bool is_in_range(const Key&, const divisions& table) {
  for (const std::uint32_t parts : table.in_slot) {
    if (parts != 0 && !std::has_single_bit(parts)) return false;
  }
  return true;
}
template <typename Key>
bool is_in_range(const Key&, const memory_limit& most) {
  return most.bytes > 0 && most.share != fraction{};
}

/// The definition of a key that the grammar has.
template <typename Grammar>
const auto& definition(std::string_view name) {
  return Grammar::keys.at(detail::key_index<Grammar>(detail::token{name}));
}

/// Returns a description of the error in the result, or null.
template <typename Grammar>
const char* flaw_of(const typename Grammar::settings& got) {
  using settings = typename Grammar::settings;
  for (const auto& k : Grammar::keys) {
    bool sound = true;
    k.member.visit(
        [&](auto member) { sound = got.*member == settings{}.*member || is_in_range(k, got.*member); });
    if (!sound) return "a setting out of range";
  }
  for (const auto& pair : Grammar::exclusions) {
    if (!definition<Grammar>(pair.one).is_equal(got, {}) &&
        !definition<Grammar>(pair.other).is_equal(got, {}))
      return "settings that exclude each other";
  }
  const auto size = [&](std::string_view name) {
    return got.*definition<Grammar>(name).member.template as<std::size_t>();
  };
  for (const auto& least : Grammar::min_sizes) {
    if (size(least.size) < size(least.bound)) return "a size below its bound";
  }
  return nullptr;
}
template <typename Grammar>
const char* flaw_of(const setting_error& why, std::string_view text) {
  if (why.offset > text.size()) return "a position past the end of the text";
  if (why.rule.empty()) return "no rule";
  if (why.key.empty() || !lies_in(why.key, text)) return "a key that is not in the text";
  const bool at_key = text.data() + why.offset == why.key.data();
  const std::string_view said = at_key ? why.key : why.value;
  if (at_key && !why.value.empty()) return "a value at the position of the key";
  if (!said.empty() && (said.data() != text.data() + why.offset || !lies_in(said, text)))
    return "a value that is not at its position";
  const bool is_key = detail::key_index<Grammar>(detail::token{why.key}) < Grammar::keys.size();
  const bool may_be_none = why.code == error_code::unknown_key || why.code == error_code::malformed;
  if (is_key ? why.code == error_code::unknown_key : !may_be_none)
    return "a known key reported as unknown, or the reverse";
  if ((why.code == error_code::excluded_by) != !why.other_key.empty())
    return "an exclusion without the other key, or the reverse";
  if (!why.other_key.empty() && (!lies_in(why.other_key, text) || why.other_key == why.key))
    return "a wrong other key";
  return nullptr;
}

}  // namespace config_test
