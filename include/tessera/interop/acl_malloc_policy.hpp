// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <variant>

#include <tessera/config/words.hpp>
#include <tessera/core/page.hpp>
#include <tessera/core/page_choice.hpp>

/// ACL's aclrtMemMallocPolicy: its numbers and names as a page_choice, and which products support it.
///
/// Where ACL's document, its translation and its code contradict each other, this is what counts here:
///   - The names LOW and HIGH count; the descriptions under them are swapped.
///   - Bandwidth alone is legal and means huge first, though the document also calls the item invalid.
///   - Enumerators may be combined by `|`, and each counts. (aclrtMalloc compares the whole number, so that to it
///     HUGE_ONLY | HIGH_BAND_WIDTH is the default policy, no longer strict; aclrtMallocWithCfg takes it apart.)
///   - A number that no enumerators make up is an error, and never the default policy.
/// What is rounded up to 2 MiB, and what is small, page_choice says.
namespace tessera::config {

/// Products, by the groups that ACL's document has.
enum class acl_product : unsigned char {
  atlas_a3,
  atlas_a2,
  atlas_200i_500_a2,
  atlas_inference,
  atlas_training
};

inline constexpr std::array<std::string_view, 5> acl_product_names{
    "Atlas A3 training products/Atlas A3 inference products",
    "Atlas A2 training products/Atlas A2 inference products", "Atlas 200I/500 A2 inference products",
    "Atlas inference products", "Atlas training products"};

/// Whether a product supports something, by ACL's document; the later, the worse.
enum class acl_support : unsigned char { yes, not_said, no };

/// An enumerator of aclrtMemMallocPolicy.
struct acl_enumerator {
  std::string_view name;
  std::uint32_t value;
  std::array<acl_support, 5> on;  ///< by acl_product
};

inline constexpr std::array<acl_enumerator, 11> acl_enumerators = [] {
  constexpr auto yes = acl_support::yes, no = acl_support::no, none = acl_support::not_said;
  constexpr std::array<acl_support, 5> not_said{none, none, none, none, none};
  constexpr std::array<acl_support, 5> for_peers{yes, yes, no, yes, yes}, giant{yes, yes, no, no, no};
  return std::array<acl_enumerator, 11>{{{"ACL_MEM_MALLOC_HUGE_FIRST", 0, not_said},
                                         {"ACL_MEM_MALLOC_HUGE_ONLY", 1, not_said},
                                         {"ACL_MEM_MALLOC_NORMAL_ONLY", 2, not_said},
                                         {"ACL_MEM_MALLOC_HUGE_FIRST_P2P", 3, for_peers},
                                         {"ACL_MEM_MALLOC_HUGE_ONLY_P2P", 4, for_peers},
                                         {"ACL_MEM_MALLOC_NORMAL_ONLY_P2P", 5, for_peers},
                                         {"ACL_MEM_MALLOC_HUGE1G_ONLY", 6, giant},
                                         {"ACL_MEM_MALLOC_HUGE1G_ONLY_P2P", 7, giant},
                                         {"ACL_MEM_TYPE_LOW_BAND_WIDTH", 0x100, not_said},
                                         {"ACL_MEM_TYPE_HIGH_BAND_WIDTH", 0x1000, not_said},
                                         {"ACL_MEM_ACCESS_USER_SPACE_READONLY", 0x100000, not_said}}};
}();
inline constexpr std::uint32_t acl_pages = 0x7;  ///< the bits that say one of the first eight
inline constexpr std::uint32_t acl_low = 0x100;
inline constexpr std::uint32_t acl_high = 0x1000;
inline constexpr std::uint32_t acl_read_only = 0x100000;

/// What the first eight enumerators say.
inline constexpr std::array<page_choice, 8> acl_page_choices{
    {{.pages = page_plan::huge_first},
     {.pages = page_plan::huge_only},
     {.pages = page_plan::normal_only},
     {.pages = page_plan::huge_first, .peer_to_peer = true},
     {.pages = page_plan::huge_only, .peer_to_peer = true},
     {.pages = page_plan::normal_only, .peer_to_peer = true},
     {.pages = page_plan::giant_only},
     {.pages = page_plan::giant_only, .peer_to_peer = true}}};

/// The number by which ACL is asked for a legal choice; for giant_first, for its first kind alone.
[[nodiscard]] constexpr std::uint32_t acl_value(const page_choice& choice) noexcept {
  std::uint32_t value = choice.speed == bandwidth::low    ? acl_low
                        : choice.speed == bandwidth::high ? acl_high
                                                          : 0;
  if (choice.read_only) value |= acl_read_only;
  const page_plan plan = choice.is_giant() ? page_plan::giant_only : choice.pages;
  for (std::uint32_t i = 0; i < acl_page_choices.size(); ++i) {
    if (acl_page_choices[i] == page_choice{.pages = plan, .peer_to_peer = choice.peer_to_peer})
      return value | i;
  }
  return value;
}
/// The number by which ACL is asked for pages of one kind: what a provider's acquire(bytes, kind) needs.
[[nodiscard]] constexpr std::uint32_t acl_value(const page_kind& kind) noexcept {
  return acl_value(page_choice::only(kind));
}

/// Reads a number of aclrtMemMallocPolicy.
///   Returns:  the choice; or an error at the lowest bit that no enumerator has, or with two enumerators that do not go
///             together, at the bit of the latter
[[nodiscard]] constexpr std::variant<page_choice, setting_error> parse_acl_malloc_policy(
    std::uint32_t value) noexcept {
  const std::uint32_t unknown = value & ~(acl_pages | acl_low | acl_high | acl_read_only);
  if (unknown != 0) {
    return setting_error{"aclrtMemMallocPolicy",
                         {},
                         "a bit that no enumerator has",
                         static_cast<std::size_t>(std::countr_zero(unknown))};
  }
  const bool low = (value & acl_low) != 0;
  const bool high = (value & acl_high) != 0;
  const std::string_view name_of_low = acl_enumerators[8].name;
  const std::string_view name_of_high = acl_enumerators[9].name;
  if (low && high)
    return setting_error{name_of_low, name_of_high, "low and high bandwidth exclude each other", 12};
  page_choice choice = acl_page_choices[value & acl_pages];
  choice.speed = low ? bandwidth::low : high ? bandwidth::high : bandwidth::any;
  choice.read_only = (value & acl_read_only) != 0;
  if (const char* const rule = choice.broken_rule()) {
    return setting_error{acl_enumerators[value & acl_pages].name, low ? name_of_low : name_of_high, rule,
                         std::size_t{low ? 8u : 12u}};
  }
  return choice;
}

/// Reads enumerators of aclrtMemMallocPolicy joined by `|`, with blanks around them or not. Two names of the first eight
/// are refused, though their numbers make up a third one. An error is at the name that brings it about.
///   Cost:  linear in the text; works in constant expressions
[[nodiscard]] constexpr std::variant<page_choice, setting_error> parse_acl_malloc_policy(
    std::string_view text) noexcept {
  std::uint32_t value = 0;
  std::string_view pages;  // the name among the first eight, once there is one
  for (std::size_t begin = 0;;) {
    std::size_t end = text.find('|', begin);
    if (end == text.npos) end = text.size();
    const std::size_t next = end + 1;
    while (begin < end && word::is_blank(text[begin])) ++begin;
    while (end > begin && word::is_blank(text[end - 1])) --end;
    const std::string_view name = text.substr(begin, end - begin);
    if (name.empty()) return setting_error{name, {}, "an enumerator is expected", begin};
    constexpr std::uint32_t none = ~std::uint32_t{0};
    std::uint32_t found = none;
    for (const acl_enumerator& each : acl_enumerators) {
      if (each.name == name) found = each.value;
    }
    if (found == none) return setting_error{name, {}, "no such enumerator of aclrtMemMallocPolicy", begin};
    if (found <= acl_pages) {
      if (!pages.empty()) return setting_error{pages, name, "only one page size may be named", begin};
      pages = name;
    }
    value |= found;
    auto choice = parse_acl_malloc_policy(value);
    if (setting_error* const why = std::get_if<setting_error>(&choice)) return why->at = begin, choice;
    if (next > text.size()) return choice;
    begin = next;
  }
}

/// What ACL's document says of a choice on a product.
struct acl_verdict {
  acl_support answer;
  std::string_view enumerator;  ///< the one that decides
  std::string_view product;
  std::string_view rule;
  bool operator==(const acl_verdict&) const = default;
};

/// Whether a product supports a legal choice: no where it supports one of its enumerators not, and yes where the document
/// says so of each. Of giant_first it judges the first kind alone.
[[nodiscard]] constexpr acl_verdict check(const page_choice& choice, acl_product product) noexcept {
  const auto column = static_cast<std::size_t>(product);
  const std::uint32_t value = acl_value(choice);
  acl_verdict verdict{
      acl_support::yes, acl_enumerators[value & acl_pages].name, acl_product_names[column], {}};
  for (const acl_enumerator& each : acl_enumerators) {
    const bool is_page = each.value <= acl_pages;
    const bool is_part = is_page ? each.value == (value & acl_pages) : (value & each.value) != 0;
    if (!is_part || (each.on[column] <= verdict.answer && !is_page)) continue;
    verdict.answer = each.on[column];
    verdict.enumerator = each.name;
  }
  if (verdict.answer == acl_support::no) {
    verdict.rule = "the product does not support it";
  } else if (verdict.answer == acl_support::not_said) {
    verdict.rule = "the document does not say whether the product supports it";
  } else if (choice.peer_to_peer && product == acl_product::atlas_inference) {
    verdict.rule = "supported; initialize communicators before any other memory is allocated";
  } else {
    verdict.rule = "supported";
  }
  return verdict;
}

/// Never defined: what reaches it in a constant expression stops the compiler.
void acl_policy_refused(const char* rule);
constexpr void refuse_acl_policy(std::string_view broken, const char* rule) {
  if (broken == rule) acl_policy_refused(rule);
}
constexpr page_choice acl_choice(auto given) {
  const auto parsed = parse_acl_malloc_policy(given);
  if (const auto* const why = std::get_if<setting_error>(&parsed)) {
    // A call for each rule, as compilers print literal arguments only.
    refuse_acl_policy(why->rule, "a bit that no enumerator has");
    refuse_acl_policy(why->rule, "an enumerator is expected");
    refuse_acl_policy(why->rule, "no such enumerator of aclrtMemMallocPolicy");
    refuse_acl_policy(why->rule, "only one page size may be named");
    refuse_acl_policy(why->rule, "low and high bandwidth exclude each other");
    refuse_acl_policy(why->rule,
                      "low or high bandwidth goes with normal and 2 MiB pages, not with 1 GiB pages");
    refuse_acl_policy(why->rule, "low or high bandwidth does not go with peer-to-peer memory");
    acl_policy_refused(why->rule.data());
  }
  return std::get<page_choice>(parsed);
}

/// The choice that a number or names of aclrtMemMallocPolicy mean, as in back_with<acl_malloc_policy("...")>; does not
/// compile where they are refused.
///
///     constexpr auto huge = tessera::config::acl_malloc_policy("ACL_MEM_MALLOC_HUGE_ONLY");
///     using recipe = tessera::with<tessera::torch_npu<>, tessera::back_with<huge>>;
[[nodiscard]] consteval page_choice acl_malloc_policy(auto given) { return acl_choice(given); }
/// The same, and does not compile either where the product does not support it.
[[nodiscard]] consteval page_choice acl_malloc_policy(auto given, acl_product product) {
  const page_choice choice = acl_choice(given);
  const bool refused = check(choice, product).answer == acl_support::no;
  refuse_acl_policy(refused ? "the product does not support it" : "", "the product does not support it");
  return choice;
}

}  // namespace tessera::config
