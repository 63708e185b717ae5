// SPDX-License-Identifier: Apache-2.0
// Checks PYTORCH_NPU_ALLOC_CONF against torch_npu's document: keys, ranges, defaults, exclusions and examples.
#include <algorithm>
#include <cstddef>
#include <iterator>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include <tessera/config/torch_npu_conf.hpp>
#include <tessera/core/bytes.hpp>

#include "refused.hpp"

namespace {

using namespace tessera::literals;
using config_tests::both;
using config_tests::expect_change;
using config_tests::refused;
using tessera::divisions;
using error_code = tessera::config::setting_error::error_code;
using tessera::config::setting_error;
using tessera::config::torch_npu;
using torch_npu_settings = tessera::config::torch_npu::settings;

constexpr bool is_legal(std::string_view text) { return config_tests::is_legal<torch_npu>(text); }
constexpr torch_npu_settings settings(std::string_view text) {
  return config_tests::settings<torch_npu>(text);
}
constexpr setting_error error(std::string_view text) { return config_tests::error<torch_npu>(text); }

TEST(torch_npu_conf, defaults) {
  const torch_npu_settings none = both<torch_npu, "">();
  EXPECT_EQ(none, torch_npu_settings{});
  EXPECT_EQ(none.max_split_size, tessera::unlimited);
  EXPECT_EQ(none.max_non_split_rounding, 20_MiB);
  EXPECT_EQ(none.large_segment_size, 20_MiB);
  EXPECT_EQ(none.garbage_collection_threshold, tessera::fraction{});
  EXPECT_EQ(none.roundup, divisions{});
  EXPECT_FALSE(none.expandable_segments);
  EXPECT_EQ(none.base_addr_aligned, 16_KiB);
  EXPECT_FALSE(none.huge_1g_pages);
  EXPECT_EQ(none.segment_size, 20_MiB);
  EXPECT_FALSE(none.multi_stream_lazy_reclaim);
  EXPECT_EQ(none.memory_fraction, tessera::percent(100));
  EXPECT_FALSE(none.throw_on_oom);
  EXPECT_FALSE(none.release_lock);
  EXPECT_FALSE(none.pinned_use_background_threads);
  EXPECT_FALSE(none.pin_memory_expandable_segments);
  EXPECT_FALSE(none.pinned_mem_register);
  EXPECT_EQ(none.pinned_max_round_threshold, tessera::unlimited);
  EXPECT_EQ(none.pinned_max_cached_size, tessera::unlimited);
  EXPECT_EQ(none.pinned_reserve_segment_size, 0u);
}

// Each key changes only its own setting.
TEST(torch_npu_conf, every_key) {
  using s = torch_npu_settings;
  expect_change<torch_npu, "max_split_size_mb:32">([](s& c) { c.max_split_size = 32_MiB; });
  expect_change<torch_npu, "garbage_collection_threshold:0.6">(
      [](s& c) { c.garbage_collection_threshold = tessera::percent(60); });
  expect_change<torch_npu, "expandable_segments:True">([](s& c) { c.expandable_segments = true; });
  expect_change<torch_npu, "base_addr_aligned_kb:4">([](s& c) { c.base_addr_aligned = 4_KiB; });
  expect_change<torch_npu, "page_size:1g">([](s& c) { c.huge_1g_pages = true; });
  expect_change<torch_npu, "segment_size_mb:40">([](s& c) { c.segment_size = 40_MiB; });
  expect_change<torch_npu, "roundup_power2_divisions:8">([](s& c) { c.roundup = divisions::all(8); });
  expect_change<torch_npu, "pinned_use_background_threads:True">(
      [](s& c) { c.pinned_use_background_threads = true; });
  expect_change<torch_npu, "pin_memory_expandable_segments:True">(
      [](s& c) { c.pin_memory_expandable_segments = true; });
  expect_change<torch_npu, "pinned_mem_register:True">([](s& c) { c.pinned_mem_register = true; });
  expect_change<torch_npu, "max_non_split_rounding_mb:21">([](s& c) { c.max_non_split_rounding = 21_MiB; });
  expect_change<torch_npu, "large_segment_size_mb:30">(
      [](s& c) { c.large_segment_size = c.max_non_split_rounding = 30_MiB; });
  expect_change<torch_npu, "per_process_memory_fraction:0.5">(
      [](s& c) { c.memory_fraction = tessera::percent(50); });
  expect_change<torch_npu, "throw_on_npumalloc_oom:True">([](s& c) { c.throw_on_oom = true; });
  expect_change<torch_npu, "release_lock_on_npumalloc:True">([](s& c) { c.release_lock = true; });
  expect_change<torch_npu, "multi_stream_lazy_reclaim:True">(
      [](s& c) { c.multi_stream_lazy_reclaim = true; });
  expect_change<torch_npu, "pinned_max_round_threshold_mb:64">(
      [](s& c) { c.pinned_max_round_threshold = 64_MiB; });
  expect_change<torch_npu, "pinned_max_cached_size_mb:128">([](s& c) { c.pinned_max_cached_size = 128_MiB; });
  expect_change<torch_npu, "pinned_reserve_segment_size_mb:256">(
      [](s& c) { c.pinned_reserve_segment_size = 256_MiB; });
}

// The examples of the document, in its order.
TEST(torch_npu_conf, examples_of_the_document) {
  const auto first = both<torch_npu, "max_split_size_mb:32,garbage_collection_threshold:0.6">();
  EXPECT_EQ(first.max_split_size, 32_MiB);
  EXPECT_EQ(first.garbage_collection_threshold, tessera::percent(60));
  const auto second = both<torch_npu, "expandable_segments:True,base_addr_aligned_kb:16">();
  EXPECT_TRUE(second.expandable_segments);
  EXPECT_EQ(second.base_addr_aligned, 16_KiB);
  EXPECT_TRUE((both<torch_npu, "page_size:1g">().huge_1g_pages));
  const auto fourth = both<torch_npu, "expandable_segments:True,segment_size_mb:40">();
  EXPECT_TRUE(fourth.expandable_segments);
  EXPECT_EQ(fourth.segment_size, 40_MiB);
  EXPECT_EQ((both<torch_npu, "roundup_power2_divisions:4">().roundup), divisions::all(4));
  const auto list = both<torch_npu, "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]">();
  EXPECT_EQ(list.roundup, (divisions{{1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 4, 8, 8, 8, 8, 8}}));
  EXPECT_TRUE((both<torch_npu, "pinned_use_background_threads:True">().pinned_use_background_threads));
  EXPECT_TRUE((both<torch_npu, "pin_memory_expandable_segments:True">().pin_memory_expandable_segments));
  EXPECT_TRUE((both<torch_npu, "pinned_mem_register:True">().pinned_mem_register));
}

TEST(torch_npu_conf, ends_of_ranges_are_legal) {
  EXPECT_EQ((both<torch_npu, "max_split_size_mb:21">().max_split_size), 21_MiB);
  EXPECT_EQ((both<torch_npu, "max_split_size_mb:18446744073709551615">()), torch_npu_settings{});
  EXPECT_EQ(
      (both<torch_npu, "garbage_collection_threshold:0.000000001">().garbage_collection_threshold.billionths),
      1u);
  EXPECT_EQ(
      (both<torch_npu, "garbage_collection_threshold:0.999999999">().garbage_collection_threshold.billionths),
      999'999'999u);
  EXPECT_EQ((both<torch_npu, "base_addr_aligned_kb:0">().base_addr_aligned), 0u);
  EXPECT_EQ((both<torch_npu, "base_addr_aligned_kb:16">().base_addr_aligned), 16_KiB);
  EXPECT_EQ((both<torch_npu, "segment_size_mb:20">().segment_size), 20_MiB);
  EXPECT_EQ((both<torch_npu, "segment_size_mb:512">().segment_size), 512_MiB);
  EXPECT_EQ((both<torch_npu, "large_segment_size_mb:11">().large_segment_size), 11_MiB);
  EXPECT_EQ((both<torch_npu, "large_segment_size_mb:1099511627775">().large_segment_size),
            std::size_t{1099511627775} << 20);
  EXPECT_EQ((both<torch_npu, "max_non_split_rounding_mb:20">().max_non_split_rounding), 20_MiB);
  EXPECT_EQ((both<torch_npu, "per_process_memory_fraction:0">().memory_fraction), tessera::fraction{});
  EXPECT_EQ((both<torch_npu, "per_process_memory_fraction:1.0">().memory_fraction), tessera::percent(100));
  EXPECT_EQ((both<torch_npu, "pinned_max_round_threshold_mb:0">().pinned_max_round_threshold), 0u);
  EXPECT_EQ((both<torch_npu, "pinned_max_cached_size_mb:0">().pinned_max_cached_size), 0u);
  EXPECT_EQ((both<torch_npu, "pinned_reserve_segment_size_mb:0">().pinned_reserve_segment_size), 0u);
  EXPECT_EQ((both<torch_npu, "roundup_power2_divisions:0">().roundup), divisions{});
  EXPECT_EQ((both<torch_npu, "roundup_power2_divisions:1">().roundup), divisions::all(1));
  EXPECT_EQ((both<torch_npu, "roundup_power2_divisions:2147483648">().roundup), divisions::all(1u << 31));
  EXPECT_EQ((both<torch_npu, "roundup_power2_divisions:[1:0,32768:4]">().roundup.in_slot[15]), 4u);
}

TEST(torch_npu_conf, a_default_may_be_written) {
  EXPECT_EQ((both<torch_npu,
                  "expandable_segments:False,pinned_use_background_threads:False,"
                  "pin_memory_expandable_segments:False,pinned_mem_register:False,"
                  "throw_on_npumalloc_oom:False,release_lock_on_npumalloc:False,"
                  "multi_stream_lazy_reclaim:False">()),
            torch_npu_settings{});
}

TEST(torch_npu_conf, sizes_are_compared_in_any_order) {
  const auto below = both<torch_npu, "max_split_size_mb:30,large_segment_size_mb:30">();
  EXPECT_EQ(below.max_split_size, 30_MiB);
  EXPECT_EQ((both<torch_npu, "large_segment_size_mb:30,max_split_size_mb:30">()), below);
  EXPECT_EQ(
      (both<torch_npu, "max_non_split_rounding_mb:15,large_segment_size_mb:15">().max_non_split_rounding),
      15_MiB);
}

TEST(torch_npu_conf, the_last_of_equal_keys_wins) {
  EXPECT_EQ(settings("segment_size_mb:40,segment_size_mb:80").segment_size, 80_MiB);
  EXPECT_FALSE(settings("expandable_segments:True,expandable_segments:False").expandable_segments);
  EXPECT_TRUE(is_legal("expandable_segments:True,max_split_size_mb:32,expandable_segments:False"));
  EXPECT_FALSE(is_legal("expandable_segments:False,max_split_size_mb:32,expandable_segments:True"));
}

/// Two settings that conflict, each with the default of its key.
struct pair {
  std::string_view one, other, one_off, other_off, rule;
};
class torch_npu_conf_exclusions : public testing::TestWithParam<pair> {};

std::string_view key_of(std::string_view setting) { return setting.substr(0, setting.find(':')); }

TEST_P(torch_npu_conf_exclusions, hold_in_both_orders_and_only_together) {
  const auto& [one, other, one_off, other_off, its_rule] = GetParam();
  const std::string_view rule = its_rule;  // which a lambda may use
  const auto text = [](std::string_view a, std::string_view b) {
    return std::string(a) + "," + std::string(b);
  };
  EXPECT_TRUE(is_legal(one)) << one;
  EXPECT_TRUE(is_legal(other)) << other;
  const auto expect_excluded = [&](std::string_view first, std::string_view second) {
    SCOPED_TRACE(text(first, second));
    config_tests::expect_refusal(
        tessera::config::parse<torch_npu>(text(first, second)),
        {key_of(second), "", rule, first.size() + 1, error_code::excluded_by, key_of(first)});
  };
  expect_excluded(one, other);
  expect_excluded(other, one);
  if (!one_off.empty()) {
    EXPECT_TRUE(is_legal(text(one_off, other)));
    EXPECT_TRUE(is_legal(text(other, one_off)));
  }
  if (!other_off.empty()) {
    EXPECT_TRUE(is_legal(text(one, other_off)));
    EXPECT_TRUE(is_legal(text(other_off, one)));
  }
}

constexpr std::string_view split = "max_split_size_mb:32";
constexpr std::string_view no_split = "max_split_size_mb:18446744073709551615";
constexpr std::string_view collect = "garbage_collection_threshold:0.6";
constexpr std::string_view pages = "page_size:1g";

INSTANTIATE_TEST_SUITE_P(
    document, torch_npu_conf_exclusions,
    testing::Values(
        pair{"expandable_segments:True", split, "expandable_segments:False", no_split,
             torch_npu::expandable_rule},
        pair{"expandable_segments:True", collect, "expandable_segments:False", "",
             torch_npu::expandable_rule},
        pair{"pin_memory_expandable_segments:True", "pinned_mem_register:True",
             "pin_memory_expandable_segments:False", "pinned_mem_register:False", torch_npu::pinned_rule},
        pair{pages, split, "", no_split, torch_npu::page_size_rule},
        pair{pages, collect, "", "", torch_npu::page_size_rule},
        pair{pages, "roundup_power2_divisions:4", "", "roundup_power2_divisions:0",
             torch_npu::page_size_rule},
        pair{pages, "roundup_power2_divisions:[64:8]", "", "roundup_power2_divisions:[]",
             torch_npu::page_size_rule},
        pair{pages, "pinned_use_background_threads:True", "", "pinned_use_background_threads:False",
             torch_npu::page_size_rule},
        pair{pages, "pin_memory_expandable_segments:True", "", "pin_memory_expandable_segments:False",
             torch_npu::page_size_rule},
        pair{pages, "pinned_mem_register:True", "", "pinned_mem_register:False", torch_npu::page_size_rule}));

TEST(torch_npu_conf, has_no_other_exclusion) {
  // For each key a value that differs from its default, in the order of the table.
  constexpr std::string_view on[] = {"max_split_size_mb:64",
                                     "garbage_collection_threshold:0.6",
                                     "expandable_segments:True",
                                     "base_addr_aligned_kb:0",
                                     "page_size:1g",
                                     "segment_size_mb:40",
                                     "roundup_power2_divisions:4",
                                     "pinned_use_background_threads:True",
                                     "pin_memory_expandable_segments:True",
                                     "pinned_mem_register:True",
                                     "max_non_split_rounding_mb:64",
                                     "large_segment_size_mb:30",
                                     "per_process_memory_fraction:0.5",
                                     "throw_on_npumalloc_oom:True",
                                     "release_lock_on_npumalloc:True",
                                     "multi_stream_lazy_reclaim:True",
                                     "pinned_max_round_threshold_mb:64",
                                     "pinned_max_cached_size_mb:64",
                                     "pinned_reserve_segment_size_mb:64"};
  static_assert(std::size(on) == torch_npu::keys.size());
  std::size_t refusals = 0;
  for (std::size_t i = 0; i < std::size(on); ++i) {
    ASSERT_EQ(key_of(on[i]), torch_npu::keys[i].name);
    for (std::size_t j = 0; j < std::size(on); ++j) {
      if (i != j) refusals += !is_legal(std::string(on[i]) + "," + std::string(on[j]));
    }
  }
  EXPECT_EQ(refusals, 2 * torch_npu::exclusions.size());
}

// The document defines page_size together with these keys.
TEST(torch_npu_conf, page_size_is_allowed_with_related_keys) {
  const auto all =
      both<torch_npu, "page_size:1g,expandable_segments:True,segment_size_mb:512,base_addr_aligned_kb:0">();
  EXPECT_TRUE(all.huge_1g_pages && all.expandable_segments);
  EXPECT_EQ(all.segment_size, 512_MiB);
  EXPECT_TRUE(is_legal("segment_size_mb:40,page_size:1g"));
  // The error names each key that may stand beside it, and no other.
  std::size_t named = 0;
  for (const auto& key : torch_npu::keys) {
    const auto with = [&key](const auto& pair) { return pair.one == "page_size" && pair.other == key.name; };
    const bool is_excluded = std::any_of(torch_npu::exclusions.begin(), torch_npu::exclusions.end(), with);
    const bool is_named =
        torch_npu::page_size_rule.find(" " + std::string(key.name)) != std::string_view::npos;
    EXPECT_EQ(is_named, !is_excluded && key.name != "page_size") << key.name;
    named += is_named;
  }
  EXPECT_EQ(named, 12u);
  const auto refused = tessera::config::parse<torch_npu>("page_size:1g,max_split_size_mb:32");
  const std::string text = tessera::config::bad_setting("conf", std::get<1>(refused)).what();
  EXPECT_TRUE(text.ends_with("pinned_reserve_segment_size_mb beside it")) << text;
  EXPECT_TRUE(is_legal("expandable_segments:True,page_size:1g,per_process_memory_fraction:0.5"));
}

class torch_npu_conf_errors : public testing::TestWithParam<refused> {};
TEST_P(torch_npu_conf_errors, have_key_value_rule_and_position) {
  config_tests::expect_refusal(tessera::config::parse<torch_npu>(GetParam().text), GetParam().why);
}

using config_tests::at_least_0;
using config_tests::no_colon;
using config_tests::no_comma;
using config_tests::not_bool;
using config_tests::not_decimal;
using config_tests::not_inside;
using config_tests::not_mib;
using config_tests::not_share;

constexpr std::string_view not_kib = "must be a whole number of KiB";
constexpr std::string_view no_zeros = "must be written without leading zeros";
constexpr std::string_view not_parts = "divisions must be 0 or a power of two below 2^32";
constexpr std::string_view at_most_16 = "must be from 0 to 16";
constexpr std::string_view to_512 = "must be from 20 to 512";
constexpr std::string_view above_20 = "must be greater than 20";
constexpr std::string_view above_10 = "must be greater than 10 and less than 2^40";
constexpr std::string_view not_below_large = "must be at least large_segment_size_mb";

INSTANTIATE_TEST_SUITE_P(
    keys, torch_npu_conf_errors,
    testing::Values(
        refused{"foo:1", {"foo", "", "no such key", 0, error_code::unknown_key}},
        refused{"Max_split_size_mb:32", {"Max_split_size_mb", "", "no such key", 0, error_code::unknown_key}},
        refused{"segment_size_mb:40,backend:native",
                {"backend", "", "no such key", 19, error_code::unknown_key}},
        refused{"throw_on_cudamalloc_oom:True",
                {"throw_on_cudamalloc_oom", "", "no such key", 0, error_code::unknown_key}},
        refused{"page_size", {"page_size", "", no_colon, 9, error_code::missing_value}},
        refused{"page_size,1g", {"page_size", ",", no_colon, 9, error_code::missing_value}},
        refused{"page_size=1g", {"page_size=1g", "", "no such key", 0, error_code::unknown_key}},
        refused{"page_size:1g;", {"page_size", "1g;", "must be 1g", 10, error_code::unknown_value}},
        refused{"page_size:1g:", {"page_size", ":", no_comma, 12, error_code::malformed}},
        refused{",page_size:1g", {",", "", "a key is expected", 0, error_code::malformed}},
        refused{"page_size:1g,,", {",", "", "a key is expected", 13, error_code::malformed}}));

INSTANTIATE_TEST_SUITE_P(
    values, torch_npu_conf_errors,
    testing::Values(
        refused{"max_split_size_mb:20", {"max_split_size_mb", "20", above_20, 18, error_code::out_of_range}},
        refused{"max_split_size_mb:0", {"max_split_size_mb", "0", above_20, 18, error_code::out_of_range}},
        refused{"max_split_size_mb:18446744073709551616",
                {"max_split_size_mb", "18446744073709551616", "must be less than 2^64", 18,
                 error_code::out_of_range}},
        refused{"max_split_size_mb:", {"max_split_size_mb", "", not_mib, 18, error_code::missing_value}},
        refused{"max_split_size_mb:,", {"max_split_size_mb", ",", not_mib, 18, error_code::missing_value}},
        refused{"max_split_size_mb:32MB",
                {"max_split_size_mb", "32MB", not_mib, 18, error_code::not_a_number}},
        refused{"max_split_size_mb:-32",
                {"max_split_size_mb", "-32", above_20, 18, error_code::out_of_range}},
        refused{"max_split_size_mb:25,large_segment_size_mb:30",
                {"max_split_size_mb", "25", not_below_large, 18, error_code::out_of_range}},
        refused{"large_segment_size_mb:30,max_split_size_mb:25",
                {"max_split_size_mb", "25", not_below_large, 43, error_code::out_of_range}},
        refused{"max_non_split_rounding_mb:19",
                {"max_non_split_rounding_mb", "19", not_below_large, 26, error_code::out_of_range}},
        refused{"large_segment_size_mb:1099511627776",
                {"large_segment_size_mb", "1099511627776", above_10, 22, error_code::out_of_range}},
        refused{"large_segment_size_mb:10",
                {"large_segment_size_mb", "10", above_10, 22, error_code::out_of_range}},
        refused{"garbage_collection_threshold:0",
                {"garbage_collection_threshold", "0", not_inside, 29, error_code::out_of_range}},
        refused{"garbage_collection_threshold:1.0",
                {"garbage_collection_threshold", "1.0", not_inside, 29, error_code::out_of_range}},
        refused{"garbage_collection_threshold:99999999999999999999",
                {"garbage_collection_threshold", "99999999999999999999", not_inside, 29,
                 error_code::out_of_range}},
        refused{"garbage_collection_threshold:60%",
                {"garbage_collection_threshold", "60%", not_decimal, 29, error_code::not_a_number}},
        refused{"base_addr_aligned_kb:17",
                {"base_addr_aligned_kb", "17", at_most_16, 21, error_code::out_of_range}},
        refused{"base_addr_aligned_kb:-1",
                {"base_addr_aligned_kb", "-1", at_most_16, 21, error_code::out_of_range}},
        refused{"base_addr_aligned_kb:8.0",
                {"base_addr_aligned_kb", "8.0", not_kib, 21, error_code::out_of_range}},
        refused{"base_addr_aligned_kb:016",
                {"base_addr_aligned_kb", "016", no_zeros, 21, error_code::malformed}},
        refused{"base_addr_aligned_kb:00",
                {"base_addr_aligned_kb", "00", no_zeros, 21, error_code::malformed}},
        refused{"base_addr_aligned_kb:",
                {"base_addr_aligned_kb", "", not_kib, 21, error_code::missing_value}},
        refused{"segment_size_mb:19", {"segment_size_mb", "19", to_512, 16, error_code::out_of_range}},
        refused{"segment_size_mb:513", {"segment_size_mb", "513", to_512, 16, error_code::out_of_range}},
        refused{"segment_size_mb:-5", {"segment_size_mb", "-5", to_512, 16, error_code::out_of_range}},
        refused{"segment_size_mb:40.5", {"segment_size_mb", "40.5", not_mib, 16, error_code::out_of_range}},
        refused{"page_size:2m", {"page_size", "2m", "must be 1g", 10, error_code::unknown_value}},
        refused{"page_size:1G", {"page_size", "1G", "must be 1g", 10, error_code::unknown_value}},
        refused{"page_size:", {"page_size", "", "must be 1g", 10, error_code::missing_value}},
        refused{"expandable_segments:true",
                {"expandable_segments", "true", not_bool, 20, error_code::unknown_value}},
        refused{"expandable_segments:1",
                {"expandable_segments", "1", not_bool, 20, error_code::unknown_value}},
        refused{"pinned_use_background_threads:yes",
                {"pinned_use_background_threads", "yes", not_bool, 30, error_code::unknown_value}},
        refused{"pin_memory_expandable_segments:",
                {"pin_memory_expandable_segments", "", not_bool, 31, error_code::missing_value}},
        refused{"pinned_mem_register:TRUE",
                {"pinned_mem_register", "TRUE", not_bool, 20, error_code::unknown_value}},
        refused{"per_process_memory_fraction:1.000000001",
                {"per_process_memory_fraction", "1.000000001", not_share, 28, error_code::out_of_range}},
        refused{"pinned_max_round_threshold_mb:-1",
                {"pinned_max_round_threshold_mb", "-1", at_least_0, 30, error_code::out_of_range}},
        refused{"roundup_power2_divisions:3",
                {"roundup_power2_divisions", "3", not_parts, 25, error_code::out_of_range}},
        refused{"roundup_power2_divisions:[256:1 512:2]",
                {"roundup_power2_divisions", "1 512", not_parts, 30, error_code::out_of_range}}));

// Of several errors, the first in the text is reported. Exclusions are reported last.
TEST(torch_npu_conf, the_first_error_is_reported) {
  EXPECT_EQ(error("segment_size_mb:1,base_addr_aligned_kb:99").key, "segment_size_mb");
  EXPECT_EQ(error("page_size:1g,max_split_size_mb:32,segment_size_mb:1").code, error_code::out_of_range);
}

}  // namespace
