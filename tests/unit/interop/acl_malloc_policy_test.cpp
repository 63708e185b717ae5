// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <ostream>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/core/types.hpp>
#include <tessera/interop/acl_malloc_policy.hpp>
#include <tessera/tessera.hpp>

#include "../config/refused.hpp"

namespace {
std::vector<std::string> reported_rules;
}

// A compiler stops here. A running program records the rule and continues.
template <auto... What>
void tessera::detail::acl_policy_refused() {
  [[maybe_unused]] const auto report = [](const auto& what) {
    if constexpr (requires { what.chars; }) reported_rules.emplace_back(what.chars);
  };
  (report(What), ...);
  if constexpr (sizeof...(What) == 0) reported_rules.emplace_back("any");
}

namespace {

using namespace tessera;
using config::setting_error;
using code = setting_error::error_code;

constexpr page_choice choice(std::uint32_t value) {
  return std::get<page_choice>(acl_malloc_policy::parse(value));
}
constexpr page_choice choice(std::string_view text) {
  return std::get<page_choice>(acl_malloc_policy::parse(text));
}
constexpr bool is_legal(std::uint32_t value) {
  return std::holds_alternative<page_choice>(acl_malloc_policy::parse(value));
}
constexpr setting_error error(std::uint32_t value) {
  return std::get<setting_error>(acl_malloc_policy::parse(value));
}

static_assert(choice(0) == page_choice{} && choice("ACL_MEM_MALLOC_HUGE_FIRST") == page_choice{});
static_assert(acl_malloc_policy::choice("ACL_MEM_MALLOC_HUGE1G_ONLY", acl_malloc_policy::product::atlas_a3) ==
              acl_malloc_policy::choice(6u));
using fast = prefer_pages<acl_malloc_policy::choice("ACL_MEM_MALLOC_HUGE_ONLY|ACL_MEM_TYPE_HIGH_BAND_WIDTH")>;
static_assert(pages_policy<fast> &&
              fast::initial == page_choice{page_preference::huge_only, page_kind::bandwidth::high});

TEST(acl_malloc_policy, numbers) {
  EXPECT_EQ(choice(0), (page_choice{.pages = page_preference::huge_first}));
  EXPECT_EQ(choice(1), (page_choice{.pages = page_preference::huge_only}));
  EXPECT_EQ(choice(2), (page_choice{.pages = page_preference::normal_only}));
  EXPECT_EQ(choice(3), (page_choice{.pages = page_preference::huge_first, .peer_to_peer = true}));
  EXPECT_EQ(choice(4), (page_choice{.pages = page_preference::huge_only, .peer_to_peer = true}));
  EXPECT_EQ(choice(5), (page_choice{.pages = page_preference::normal_only, .peer_to_peer = true}));
  EXPECT_EQ(choice(6), (page_choice{.pages = page_preference::huge_1g_only}));
  EXPECT_EQ(choice(7), (page_choice{.pages = page_preference::huge_1g_only, .peer_to_peer = true}));
  EXPECT_EQ(choice(0x102),
            (page_choice{.pages = page_preference::normal_only, .speed = page_kind::bandwidth::low}));
  EXPECT_EQ(choice(0x101001), (page_choice{.pages = page_preference::huge_only,
                                           .speed = page_kind::bandwidth::high,
                                           .read_only = true}));
  EXPECT_EQ(choice(0x100007),
            (page_choice{.pages = page_preference::huge_1g_only, .peer_to_peer = true, .read_only = true}));
}

TEST(acl_malloc_policy, a_name_equals_its_number) {
  for (const tessera::detail::acl_enumerator& each : tessera::detail::acl_enumerators)
    EXPECT_EQ(choice(each.name), choice(each.value)) << each.name;
  EXPECT_EQ(
      choice(
          " ACL_MEM_TYPE_HIGH_BAND_WIDTH\t|ACL_MEM_MALLOC_HUGE_FIRST |ACL_MEM_ACCESS_USER_SPACE_READONLY\n"),
      choice(0x101000));
  EXPECT_EQ(choice("ACL_MEM_ACCESS_USER_SPACE_READONLY|ACL_MEM_MALLOC_HUGE1G_ONLY_P2P"), choice(0x100007));
  EXPECT_EQ(choice("ACL_MEM_TYPE_LOW_BAND_WIDTH|ACL_MEM_TYPE_LOW_BAND_WIDTH"), choice(0x100));
}

// Every number of 21 bits: exactly those that enumerators make up and the document allows are legal.
TEST(acl_malloc_policy, legal_numbers_round_trip) {
  int legal = 0;
  for (std::uint32_t value = 0; value < 1u << 21; ++value) {
    const bool known = (value & ~0x101107u) == 0;
    const bool low = (value & 0x100) != 0, high = (value & 0x1000) != 0;
    const bool allowed = known && !(low && high) && (!(low || high) || (value & 7) <= 2);
    ASSERT_EQ(is_legal(value), allowed) << std::hex << value;
    if (!allowed) continue;
    ++legal;
    ASSERT_EQ(acl_malloc_policy::number(choice(value)), value);
  }
  EXPECT_EQ(legal, (8 + 2 * 3) * 2);
}

TEST(acl_malloc_policy, a_page_kind_has_a_strict_number) {
  EXPECT_EQ(acl_malloc_policy::number(page_kind::normal), 2u);
  EXPECT_EQ(acl_malloc_policy::number(page_kind::huge), 1u);
  EXPECT_EQ(acl_malloc_policy::number(page_kind::huge_1g), 6u);
  EXPECT_EQ(acl_malloc_policy::number(
                page_kind{page_kind::page_size::huge, page_kind::bandwidth::low, false, true}),
            0x100101u);
  EXPECT_EQ(
      acl_malloc_policy::number(page_kind{page_kind::page_size::normal, page_kind::bandwidth::any, true}),
      5u);
  EXPECT_EQ(acl_malloc_policy::number(page_choice{.pages = page_preference::huge_1g_first}), 6u);
}

// The document describes LOW as memory "with high bandwidth" and HIGH as memory "with low bandwidth".
TEST(acl_malloc_policy, names_count_rather_than_descriptions) {
  EXPECT_EQ(choice("ACL_MEM_TYPE_LOW_BAND_WIDTH").speed, page_kind::bandwidth::low);
  EXPECT_EQ(choice("ACL_MEM_TYPE_HIGH_BAND_WIDTH").speed, page_kind::bandwidth::high);
}

// The document says that huge first is used then. Under the item, it says that this "is invalid".
TEST(acl_malloc_policy, bandwidth_alone_means_huge_first) {
  EXPECT_EQ(choice(0x100),
            (page_choice{.pages = page_preference::huge_first, .speed = page_kind::bandwidth::low}));
  EXPECT_EQ(choice("ACL_MEM_TYPE_HIGH_BAND_WIDTH"),
            choice("ACL_MEM_MALLOC_HUGE_FIRST|ACL_MEM_TYPE_HIGH_BAND_WIDTH"));
}

// The document allows enumerators joined by `|`. Its later editions mention a single one only.
TEST(acl_malloc_policy, enumerators_may_be_combined) {
  for (std::uint32_t pages : {0u, 1u, 2u}) {
    for (std::uint32_t speed : {0x100u, 0x1000u}) EXPECT_TRUE(is_legal(pages | speed));
  }
  for (std::uint32_t pages = 0; pages < 8; ++pages) EXPECT_TRUE(choice(pages | 0x100000).read_only);
}

// aclrtMalloc compares for equality: 0x1001 is the default policy and falls back to normal pages.
TEST(acl_malloc_policy, strict_huge_stays_strict_with_bandwidth) {
  const page_order order = choice(0x1001).order(4_MiB);
  ASSERT_EQ(order.count, 1u);
  EXPECT_EQ(order.kinds[0], (page_kind{page_kind::page_size::huge, page_kind::bandwidth::high}));
}

// In the documents, an unknown number means huge pages from 2 MiB on; in the code, the default policy.
TEST(acl_malloc_policy, a_number_out_of_range_is_an_error) {
  for (std::uint32_t value : {8u, 0xFFu, 0x200u, 0x101108u, 0x80000000u, 0xFFFFFFFFu})
    EXPECT_FALSE(is_legal(value));
  EXPECT_EQ(error(8), (setting_error{"aclrtMemMallocPolicy", "bit 3 (0x8)", "a bit that no enumerator has",
                                     setting_error::nowhere, code::unknown_key}));
  EXPECT_EQ(error(0x80000001).value, "bit 31 (0x80000000)");
  EXPECT_EQ(error(0x2000).value, "bit 13 (0x2000)");
  EXPECT_STREQ(config::bad_setting("policy", error(0x400)).what(),
               "policy: aclrtMemMallocPolicy bit 10 (0x400): a bit that no enumerator has");
}

TEST(acl_malloc_policy, conflicting_numbers) {
  const auto excluded = [](std::string_view key, std::string_view by, std::string_view rule) {
    return setting_error{key, {}, rule, setting_error::nowhere, code::excluded_by, by};
  };
  EXPECT_EQ(error(0x1100), excluded("ACL_MEM_TYPE_HIGH_BAND_WIDTH", "ACL_MEM_TYPE_LOW_BAND_WIDTH",
                                    "low and high bandwidth exclude each other"));
  EXPECT_EQ(error(0x103), excluded("ACL_MEM_TYPE_LOW_BAND_WIDTH", "ACL_MEM_MALLOC_HUGE_FIRST_P2P",
                                   "low or high bandwidth does not go with peer-to-peer memory"));
  EXPECT_EQ(error(0x1006),
            excluded("ACL_MEM_TYPE_HIGH_BAND_WIDTH", "ACL_MEM_MALLOC_HUGE1G_ONLY",
                     "low or high bandwidth goes with normal and 2 MiB pages, not with 1 GiB pages"));
}

using config_tests::refused;
class acl_malloc_policy_errors : public testing::TestWithParam<refused> {};

TEST_P(acl_malloc_policy_errors, say_names_rule_and_place) {
  config_tests::expect_refusal(acl_malloc_policy::parse(GetParam().text), GetParam().why);
}

constexpr std::string_view huge_only = "ACL_MEM_MALLOC_HUGE_ONLY";
constexpr std::string_view huge_for_peers = "ACL_MEM_MALLOC_HUGE_ONLY_P2P";
constexpr std::string_view low = "ACL_MEM_TYPE_LOW_BAND_WIDTH";
constexpr std::string_view high = "ACL_MEM_TYPE_HIGH_BAND_WIDTH";
constexpr std::string_view unknown = "no such enumerator of aclrtMemMallocPolicy";
constexpr std::string_view missing = "an enumerator is expected";
constexpr std::string_view two_sizes = "only one page size may be named";
constexpr std::string_view two_speeds = "low and high bandwidth exclude each other";
constexpr std::string_view no_peers = "low or high bandwidth does not go with peer-to-peer memory";
constexpr std::string_view no_giants =
    "low or high bandwidth goes with normal and 2 MiB pages, not with 1 GiB pages";

INSTANTIATE_TEST_SUITE_P(
    names, acl_malloc_policy_errors,
    testing::Values(
        refused{"", {"", "", missing, 0, code::missing_value}},
        refused{"  ", {"", "", missing, 2, code::missing_value}},
        refused{"|", {"", "", missing, 0, code::missing_value}},
        refused{"ACL_MEM_MALLOC_HUGE_ONLY|", {"", "", missing, 25, code::missing_value}},
        refused{"ACL_MEM_MALLOC_HUGE_ONLY||ACL_MEM_TYPE_LOW_BAND_WIDTH",
                {"", "", missing, 25, code::missing_value}},
        refused{"0x1001", {"0x1001", "", unknown, 0, code::unknown_key}},
        refused{"acl_mem_malloc_huge_only", {"acl_mem_malloc_huge_only", "", unknown, 0, code::unknown_key}},
        refused{"ACL_MEM_MALLOC_HUGE_ONLY | HUGE", {"HUGE", "", unknown, 27, code::unknown_key}},
        refused{"ACL_MEM_MALLOC_HUGE_ONLY,ACL_MEM_TYPE_LOW_BAND_WIDTH",
                {"ACL_MEM_MALLOC_HUGE_ONLY,ACL_MEM_TYPE_LOW_BAND_WIDTH", "", unknown, 0, code::unknown_key}},
        refused{"ACL_MEM_MALLOC_HUGE_ONLY|ACL_MEM_MALLOC_NORMAL_ONLY",
                {"ACL_MEM_MALLOC_NORMAL_ONLY", "", two_sizes, 25, code::excluded_by, huge_only}},
        refused{"ACL_MEM_MALLOC_HUGE_FIRST|ACL_MEM_MALLOC_HUGE_ONLY",
                {huge_only, "", two_sizes, 26, code::excluded_by, "ACL_MEM_MALLOC_HUGE_FIRST"}},
        refused{"ACL_MEM_TYPE_HIGH_BAND_WIDTH|ACL_MEM_TYPE_LOW_BAND_WIDTH",
                {low, "", two_speeds, 29, code::excluded_by, high}},
        refused{"ACL_MEM_MALLOC_HUGE_ONLY_P2P|ACL_MEM_TYPE_LOW_BAND_WIDTH",
                {low, "", no_peers, 29, code::excluded_by, huge_for_peers}},
        refused{"ACL_MEM_TYPE_LOW_BAND_WIDTH|ACL_MEM_MALLOC_HUGE_ONLY_P2P",
                {huge_for_peers, "", no_peers, 28, code::excluded_by, low}},
        refused{"ACL_MEM_MALLOC_HUGE1G_ONLY|ACL_MEM_TYPE_HIGH_BAND_WIDTH",
                {high, "", no_giants, 27, code::excluded_by, "ACL_MEM_MALLOC_HUGE1G_ONLY"}}));

// Compilers print template arguments. So each rule has a call of its own, before the last call reports any rule.
TEST_P(acl_malloc_policy_errors, are_reported_to_the_compiler_by_an_argument) {
  reported_rules.clear();
  EXPECT_THROW((void)acl_malloc_policy::checked(acl_malloc_policy::parse(GetParam().text)),
               std::bad_variant_access);
  EXPECT_EQ(reported_rules, (std::vector<std::string>{std::string(GetParam().why.rule), "any"}));
}

TEST(acl_malloc_policy, an_error_without_a_name_has_a_position) {
  const auto words = [](auto text) {
    return std::string(
        config::bad_setting("policy", std::get<setting_error>(acl_malloc_policy::parse(text))).what());
  };
  EXPECT_EQ(words(""), "policy, character 0: an enumerator is expected");
  EXPECT_EQ(words("ACL_MEM_MALLOC_HUGE_ONLY|"), "policy, character 25: an enumerator is expected");
  EXPECT_EQ(words(static_cast<const char*>(nullptr)), "policy: there is no text");
  EXPECT_EQ(words("ACL_MEM_MALLOC_HUGE_ONLY|ACL_MEM_MALLOC_HUGE_FIRST"),
            "policy, character 25: ACL_MEM_MALLOC_HUGE_FIRST: excluded by ACL_MEM_MALLOC_HUGE_ONLY: only one "
            "page size may be named");
}

TEST(acl_malloc_policy, nothing_is_reported_for_legal_policies) {
  reported_rules.clear();
  EXPECT_EQ(
      acl_malloc_policy::checked(acl_malloc_policy::parse(std::string_view("ACL_MEM_MALLOC_HUGE1G_ONLY"))),
      acl_malloc_policy::checked(acl_malloc_policy::parse(6u)));
  EXPECT_TRUE(reported_rules.empty());
  EXPECT_THROW((void)acl_malloc_policy::checked(acl_malloc_policy::parse(8u)), std::bad_variant_access);
  EXPECT_EQ(reported_rules, (std::vector<std::string>{"a bit that no enumerator has", "any"}));
}

// The statements of the document, for each enumerator in the order of the products: yes, no, not documented.
TEST(acl_malloc_policy, product_support_equals_the_document) {
  const auto row = [](std::string_view name) {
    std::string answers;
    for (std::size_t i = 0; i < tessera::detail::acl_product_names.size(); ++i)
      answers +=
          "yn?"[acl_malloc_policy::check_support(choice(name), static_cast<acl_malloc_policy::product>(i))
                            .support == acl_malloc_policy::support::yes
                    ? 0
                : acl_malloc_policy::check_support(choice(name), static_cast<acl_malloc_policy::product>(i))
                            .support == acl_malloc_policy::support::no
                    ? 1
                    : 2];
    return answers;
  };
  for (std::string_view name :
       {"ACL_MEM_MALLOC_HUGE_FIRST", "ACL_MEM_MALLOC_HUGE_ONLY", "ACL_MEM_MALLOC_NORMAL_ONLY",
        "ACL_MEM_TYPE_LOW_BAND_WIDTH", "ACL_MEM_TYPE_HIGH_BAND_WIDTH", "ACL_MEM_ACCESS_USER_SPACE_READONLY"})
    EXPECT_EQ(row(name), "?????") << name;
  for (std::string_view name :
       {"ACL_MEM_MALLOC_HUGE_FIRST_P2P", "ACL_MEM_MALLOC_HUGE_ONLY_P2P", "ACL_MEM_MALLOC_NORMAL_ONLY_P2P"})
    EXPECT_EQ(row(name), "yynyy") << name;
  EXPECT_EQ(row("ACL_MEM_MALLOC_HUGE1G_ONLY"), "yynnn");
  EXPECT_EQ(row("ACL_MEM_MALLOC_HUGE1G_ONLY_P2P"), "yynnn");
}

TEST(acl_malloc_policy, the_worst_enumerator_decides) {
  const std::string_view both = "ACL_MEM_MALLOC_HUGE1G_ONLY|ACL_MEM_ACCESS_USER_SPACE_READONLY";
  const acl_malloc_policy::support_result undocumented =
      acl_malloc_policy::check_support(choice(both), acl_malloc_policy::product::atlas_a3);
  EXPECT_EQ(undocumented.support, acl_malloc_policy::support::not_documented);
  EXPECT_EQ(undocumented.enumerator, "ACL_MEM_ACCESS_USER_SPACE_READONLY");
  const acl_malloc_policy::support_result refused =
      acl_malloc_policy::check_support(choice(both), acl_malloc_policy::product::atlas_training);
  EXPECT_EQ(refused, (acl_malloc_policy::support_result{
                         acl_malloc_policy::support::no, "ACL_MEM_MALLOC_HUGE1G_ONLY",
                         "Atlas training products", "the product does not support it"}));
}

TEST(acl_malloc_policy, peers_on_inference_products_need_communicators_first) {
  const acl_malloc_policy::support_result peers =
      acl_malloc_policy::check_support(choice(3), acl_malloc_policy::product::atlas_inference);
  EXPECT_EQ(peers.support, acl_malloc_policy::support::yes);
  EXPECT_NE(peers.rule.find("initialize communicators before"), std::string_view::npos);
  EXPECT_EQ(acl_malloc_policy::check_support(choice(3), acl_malloc_policy::product::atlas_training).rule,
            "supported");
}

}  // namespace
