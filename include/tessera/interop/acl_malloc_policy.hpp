// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <variant>

#include <tessera/config/grammar.hpp>
#include <tessera/core/page.hpp>

/// Converts ACL's aclrtMemMallocPolicy, as numbers or names, to a page_choice, and says which products
/// support it.
///
/// ACL's document, its translation and its code contradict each other in some points. tessera decides as
/// follows:
///   - The names LOW and HIGH are right. The descriptions under them are swapped.
///   - A bandwidth alone is legal and means huge first, though the document also calls it invalid.
///   - Enumerators may be combined by `|`, and each one counts, as in aclrtMallocWithCfg. aclrtMalloc
///     compares the whole number, so that it treats HUGE_ONLY | HIGH_BAND_WIDTH as the default policy.
///   - A number that is not a combination of enumerators is an error. It is never the default policy.
/// page_choice documents which sizes are rounded up to 2 MiB and which are small.
namespace tessera::config {

/// The groups of products in ACL's document.
enum class acl_product : unsigned char {
  atlas_a3,
  atlas_a2,
  atlas_200i_500_a2,
  atlas_inference,
  atlas_training
};

/// Whether a product supports something according to ACL's document. Ordered from best to worst.
enum class acl_support : unsigned char { yes, not_documented, no };

namespace detail {

inline constexpr std::array<std::string_view, 5> acl_product_names{
    "Atlas A3 training products/Atlas A3 inference products",
    "Atlas A2 training products/Atlas A2 inference products", "Atlas 200I/500 A2 inference products",
    "Atlas inference products", "Atlas training products"};

struct acl_enumerator {
  std::string_view name;
  std::uint32_t value;
  std::array<acl_support, 5> support;  ///< by acl_product
};

/// The enumerators of aclrtMemMallocPolicy.
inline constexpr std::array<acl_enumerator, 11> acl_enumerators = [] {
  constexpr auto yes = acl_support::yes, no = acl_support::no, unknown = acl_support::not_documented;
  constexpr std::array<acl_support, 5> undocumented{unknown, unknown, unknown, unknown, unknown};
  constexpr std::array<acl_support, 5> peers{yes, yes, no, yes, yes};
  constexpr std::array<acl_support, 5> giant{yes, yes, no, no, no};
  return std::array<acl_enumerator, 11>{{{"ACL_MEM_MALLOC_HUGE_FIRST", 0, undocumented},
                                         {"ACL_MEM_MALLOC_HUGE_ONLY", 1, undocumented},
                                         {"ACL_MEM_MALLOC_NORMAL_ONLY", 2, undocumented},
                                         {"ACL_MEM_MALLOC_HUGE_FIRST_P2P", 3, peers},
                                         {"ACL_MEM_MALLOC_HUGE_ONLY_P2P", 4, peers},
                                         {"ACL_MEM_MALLOC_NORMAL_ONLY_P2P", 5, peers},
                                         {"ACL_MEM_MALLOC_HUGE1G_ONLY", 6, giant},
                                         {"ACL_MEM_MALLOC_HUGE1G_ONLY_P2P", 7, giant},
                                         {"ACL_MEM_TYPE_LOW_BAND_WIDTH", 0x100, undocumented},
                                         {"ACL_MEM_TYPE_HIGH_BAND_WIDTH", 0x1000, undocumented},
                                         {"ACL_MEM_ACCESS_USER_SPACE_READONLY", 0x100000, undocumented}}};
}();
inline constexpr std::uint32_t acl_page_mask = 0x7;  ///< selects one of the first eight enumerators
inline constexpr std::uint32_t acl_low = 0x100;
inline constexpr std::uint32_t acl_high = 0x1000;
inline constexpr std::uint32_t acl_read_only = 0x100000;

/// The meaning of the first eight enumerators.
inline constexpr std::array<page_choice, 8> acl_page_choices{
    {{.pages = page_plan::huge_first},
     {.pages = page_plan::huge_only},
     {.pages = page_plan::normal_only},
     {.pages = page_plan::huge_first, .peer_to_peer = true},
     {.pages = page_plan::huge_only, .peer_to_peer = true},
     {.pages = page_plan::normal_only, .peer_to_peer = true},
     {.pages = page_plan::huge_1g_only},
     {.pages = page_plan::huge_1g_only, .peer_to_peer = true}}};

}  // namespace detail

/// The number of aclrtMemMallocPolicy for a legal choice. For huge_1g_first, it is the number of its first
/// page kind.
[[nodiscard]] constexpr std::uint32_t acl_value(const page_choice& choice) noexcept {
  std::uint32_t value = choice.speed == page_kind::bandwidth::low    ? detail::acl_low
                        : choice.speed == page_kind::bandwidth::high ? detail::acl_high
                                                                     : 0;
  if (choice.read_only) value |= detail::acl_read_only;
  const page_plan plan = choice.is_huge_1g() ? page_plan::huge_1g_only : choice.pages;
  for (std::uint32_t i = 0; i < detail::acl_page_choices.size(); ++i) {
    if (detail::acl_page_choices[i] == page_choice{.pages = plan, .peer_to_peer = choice.peer_to_peer})
      return value | i;
  }
  return value;
}
/// The number of aclrtMemMallocPolicy for one page kind. A provider needs it in acquire(bytes, kind).
[[nodiscard]] constexpr std::uint32_t acl_value(const page_kind& kind) noexcept {
  return acl_value(page_choice::only(kind));
}

/// Parses a number of aclrtMemMallocPolicy.
///   Returns:  the choice, or an error. Its offset is the lowest unknown bit; if two enumerators exclude each
///             other, the bit of the second one
[[nodiscard]] constexpr std::variant<page_choice, setting_error> parse_acl_malloc_policy(
    std::uint32_t value) noexcept {
  using namespace detail;
  const std::uint32_t unknown = value & ~(acl_page_mask | acl_low | acl_high | acl_read_only);
  if (unknown != 0) {
    const auto bit = static_cast<std::size_t>(std::countr_zero(unknown));
    return setting_error{"aclrtMemMallocPolicy", {}, "a bit that no enumerator has", bit};
  }
  const bool low = (value & acl_low) != 0;
  const bool high = (value & acl_high) != 0;
  const std::string_view low_name = acl_enumerators[8].name;
  const std::string_view high_name = acl_enumerators[9].name;
  if (low && high) return setting_error{low_name, high_name, "low and high bandwidth exclude each other", 12};
  page_choice choice = acl_page_choices[value & acl_page_mask];
  choice.speed = low    ? page_kind::bandwidth::low
                 : high ? page_kind::bandwidth::high
                        : page_kind::bandwidth::any;
  choice.read_only = (value & acl_read_only) != 0;
  if (const char* const rule = choice.broken_rule()) {
    return setting_error{acl_enumerators[value & acl_page_mask].name, low ? low_name : high_name, rule,
                         std::size_t{low ? 8u : 12u}};
  }
  return choice;
}

/// Parses names of aclrtMemMallocPolicy joined by `|`, with or without blanks around them. Rejects two of the
/// first eight names, even if the sum of their numbers is the number of a third name.
///   Returns:  the choice, or an error with the offset of the name that causes it
///   Cost:     linear in the length of `text`; usable in constant expressions
[[nodiscard]] constexpr std::variant<page_choice, setting_error> parse_acl_malloc_policy(
    std::string_view text) noexcept {
  std::uint32_t value = 0;
  std::string_view page_name;  // the name among the first eight, if one was read
  for (std::size_t begin = 0;;) {
    std::size_t end = text.find('|', begin);
    if (end == text.npos) end = text.size();
    const std::size_t next = end + 1;
    while (begin < end && detail::is_blank(text[begin])) ++begin;
    while (end > begin && detail::is_blank(text[end - 1])) --end;
    const std::string_view name = text.substr(begin, end - begin);
    if (name.empty()) return setting_error{name, {}, "an enumerator is expected", begin};
    const detail::acl_enumerator* found = nullptr;
    for (const detail::acl_enumerator& enumerator : detail::acl_enumerators) {
      if (enumerator.name == name) found = &enumerator;
    }
    if (found == nullptr) return setting_error{name, {}, "no such enumerator of aclrtMemMallocPolicy", begin};
    if (found->value <= detail::acl_page_mask) {
      if (!page_name.empty()) return setting_error{page_name, name, "only one page size may be named", begin};
      page_name = name;
    }
    value |= found->value;
    auto choice = parse_acl_malloc_policy(value);
    if (setting_error* const error = std::get_if<setting_error>(&choice)) {
      error->offset = begin;
      return choice;
    }
    if (next > text.size()) return choice;
    begin = next;
  }
}

/// The statement of ACL's document about a choice on a product.
struct acl_support_result {
  acl_support support;
  std::string_view enumerator;  ///< the enumerator that decides
  std::string_view product;
  std::string_view rule;
  bool operator==(const acl_support_result&) const = default;
};

/// Whether a product supports a legal choice. Returns `no` if it does not support one of the enumerators, and
/// `yes` if the document states support for all of them. For huge_1g_first, only the first page kind counts.
[[nodiscard]] constexpr acl_support_result check_acl_support(const page_choice& choice,
                                                             acl_product product) noexcept {
  using namespace detail;
  const auto column = static_cast<std::size_t>(product);
  const std::uint32_t value = acl_value(choice);
  acl_support_result result{
      acl_support::yes, acl_enumerators[value & acl_page_mask].name, acl_product_names[column], {}};
  for (const acl_enumerator& each : acl_enumerators) {
    const bool is_page = each.value <= acl_page_mask;
    const bool is_used = is_page ? each.value == (value & acl_page_mask) : (value & each.value) != 0;
    if (!is_used || (each.support[column] <= result.support && !is_page)) continue;
    result.support = each.support[column];
    result.enumerator = each.name;
  }
  if (result.support == acl_support::no) {
    result.rule = "the product does not support it";
  } else if (result.support == acl_support::not_documented) {
    result.rule = "the document does not say whether the product supports it";
  } else if (choice.peer_to_peer && product == acl_product::atlas_inference) {
    result.rule = "supported; initialize communicators before any other memory is allocated";
  } else {
    result.rule = "supported";
  }
  return result;
}

namespace detail {

/// Never defined. A call in a constant expression stops the compiler, which prints the rule.
void acl_policy_refused(const char* rule);
constexpr void refuse_acl_policy(std::string_view broken, const char* rule) {
  if (broken == rule) acl_policy_refused(rule);
}
constexpr page_choice acl_choice(auto policy) {
  const auto parsed = parse_acl_malloc_policy(policy);
  if (const auto* const error = std::get_if<setting_error>(&parsed)) {
    // One call for each rule, because compilers print only literal arguments.
    refuse_acl_policy(error->rule, "a bit that no enumerator has");
    refuse_acl_policy(error->rule, "an enumerator is expected");
    refuse_acl_policy(error->rule, "no such enumerator of aclrtMemMallocPolicy");
    refuse_acl_policy(error->rule, "only one page size may be named");
    refuse_acl_policy(error->rule, "low and high bandwidth exclude each other");
    refuse_acl_policy(error->rule,
                      "low or high bandwidth goes with normal and 2 MiB pages, not with 1 GiB pages");
    refuse_acl_policy(error->rule, "low or high bandwidth does not go with peer-to-peer memory");
    acl_policy_refused(error->rule.data());
  }
  return std::get<page_choice>(parsed);
}

}  // namespace detail

/// Converts a number or names of aclrtMemMallocPolicy at compile time, as in
/// back_with<acl_malloc_policy("...")>. Does not compile if they are rejected.
///
///     constexpr auto huge = tessera::config::acl_malloc_policy("ACL_MEM_MALLOC_HUGE_ONLY");
///     using recipe = tessera::with<tessera::torch_npu<>, tessera::back_with<huge>>;
[[nodiscard]] consteval page_choice acl_malloc_policy(auto policy) { return detail::acl_choice(policy); }
/// It also does not compile if `product` does not support the choice.
[[nodiscard]] consteval page_choice acl_malloc_policy(auto policy, acl_product product) {
  const page_choice choice = detail::acl_choice(policy);
  const bool refused = check_acl_support(choice, product).support == acl_support::no;
  detail::refuse_acl_policy(refused ? "the product does not support it" : "",
                            "the product does not support it");
  return choice;
}

}  // namespace tessera::config
