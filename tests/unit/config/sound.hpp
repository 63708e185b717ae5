// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstddef>
#include <string_view>

#include <tessera/config/dialect.hpp>
#include <tessera/config/key.hpp>
#include <tessera/config/words.hpp>
#include <tessera/core/bytes.hpp>
#include <tessera/core/divisions.hpp>
#include <tessera/core/fraction.hpp>
#include <tessera/core/memory_limit.hpp>

/// What a reader of settings may answer, whatever the text.
namespace config_test {

using namespace tessera::config;
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
  switch (k.written) {
    case form::mebibytes:
      return size == tessera::unlimited ||
             (size % (1u << 20) == 0 && size >> 20 >= k.least && size >> 20 <= k.most);
    case form::kibibytes: return size % 1024 == 0 && size / 1024 >= k.least && size / 1024 <= k.most;
    case form::power_of_two: return std::has_single_bit(size) && size >= k.least && size <= k.most;
    case form::gibibytes_or_less: return size == tessera::unlimited || size < std::size_t{1} << 60;
    default: return size >= k.least && size <= k.most;
  }
}
template <typename Key>
bool is_in_range(const Key& k, fraction share) {
  return share.billionths >= k.least && share.billionths <= k.most;
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

/// What is wrong with the answer, or null.
template <typename Dialect>
const char* flaw_of(const typename Dialect::settings& got) {
  using settings = typename Dialect::settings;
  for (const auto& k : Dialect::keys) {
    bool sound = true;
    k.to.visit(
        [&](auto member) { sound = got.*member == settings{}.*member || is_in_range(k, got.*member); });
    if (!sound) return "a setting out of its range";
  }
  for (const auto& pair : Dialect::exclusions) {
    if (is_on<Dialect>(got, pair.one) && is_on<Dialect>(got, pair.other))
      return "settings that exclude each other";
  }
  const auto size = [&](auto name) {
    return got.*Dialect::keys[static_cast<std::size_t>(name)].to.template as<std::size_t>();
  };
  for (const auto& least : Dialect::least_sizes) {
    if (size(least.size) < size(least.bound)) return "a size below its bound";
  }
  return nullptr;
}
template <typename Dialect>
const char* flaw_of(const setting_error& why, std::string_view text) {
  if (why.at > text.size()) return "a place behind the text";
  if (why.rule.empty()) return "no rule";
  if (why.key.empty() || !lies_in(why.key, text)) return "a key that is not in the text";
  const bool at_key = text.data() + why.at == why.key.data();
  const std::string_view said = at_key ? why.key : why.value;
  if (at_key && !why.value.empty()) return "a value where the key is";
  if (!said.empty() && (said.data() != text.data() + why.at || !lies_in(said, text)))
    return "a value that is not at its place";
  const bool is_key = key_index<Dialect>(word{why.key}) < Dialect::keys.size();
  const bool may_be_none = why.what == fault::unknown_key || why.what == fault::malformed;
  if (is_key ? why.what == fault::unknown_key : !may_be_none)
    return "a known key that is unknown, or the reverse";
  if ((why.what == fault::excluded_by) != !why.other.empty())
    return "an exclusion by nothing, or the reverse";
  if (!why.other.empty() && (!lies_in(why.other, text) || why.other == why.key)) return "a wrong other key";
  return nullptr;
}

}  // namespace config_test
