// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <variant>

#include <gtest/gtest.h>

#include <tessera/config/pytorch_conf.hpp>
#include <tessera/core/bytes.hpp>
#include <tessera/policy/rounding.hpp>

#include "refused.hpp"

namespace {

using namespace tessera::literals;
using config_tests::both;
using config_tests::expect_change;
using tessera::divisions;
using error_code = tessera::config::setting_error::error_code;
using tessera::config::pytorch;
using pytorch_settings = tessera::config::pytorch::settings;
using tessera::config::setting_error;

constexpr bool is_legal(std::string_view text) { return config_tests::is_legal<pytorch>(text); }
constexpr pytorch_settings settings(std::string_view text) { return config_tests::settings<pytorch>(text); }
constexpr setting_error error(std::string_view text) { return config_tests::error<pytorch>(text); }

/// The block that serves a request under a setting of roundup_power2_divisions.
constexpr std::size_t block(std::string_view roundup, std::size_t request) {
  tessera::policy::round_to_divisions<512> rounding;
  rounding.table = roundup.empty() ? divisions{} : settings(roundup).roundup;
  return rounding.block_size(request);
}
constexpr std::uint32_t at_mib(const divisions& table, std::size_t mib) { return table.of(mib << 20); }

constexpr std::string_view by_4 = "roundup_power2_divisions:4";
constexpr std::string_view by_list = "roundup_power2_divisions:[64:8,128:2,256:2,512:2,1024:1,>:1]";
constexpr std::string_view with_gap = "roundup_power2_divisions:[8:1,64:4,128:8,256:2,>:16]";

// The parser is usable in constant expressions.
static_assert(settings("") == pytorch_settings{});
static_assert(settings("max_split_size_mb:32,garbage_collection_threshold:0.6").max_split_size == 32_MiB);
static_assert(error("foo:1,bar:2") == setting_error{"foo", "", "no such key", 0, error_code::unknown_key});

TEST(pytorch_conf, defaults) {
  const pytorch_settings none = both<pytorch, "">();
  EXPECT_EQ(none, pytorch_settings{});
  EXPECT_EQ(none.max_split_size, tessera::unlimited);
  EXPECT_EQ(none.max_non_split_rounding, 20_MiB);
  EXPECT_EQ(none.large_segment_size, 20_MiB);
  EXPECT_EQ(none.garbage_collection_threshold, tessera::fraction{});
  EXPECT_EQ(none.roundup, divisions{});
  EXPECT_FALSE(none.expandable_segments);
  EXPECT_EQ(none.expandable_segments_reserve, (tessera::memory_limit{tessera::fraction{1'125'000'000}}));
  EXPECT_FALSE(none.async_backend);
  EXPECT_EQ(none.memory_fraction, tessera::percent(100));
  EXPECT_FALSE(none.throw_on_oom || none.release_lock || none.graph_capture_record_stream_reuse);
  EXPECT_FALSE(none.pinned_use_background_threads || none.pinned_use_host_register ||
               none.pinned_free_catch_all);
  EXPECT_EQ(none.pinned_num_register_threads, 1u);
  EXPECT_EQ(none.pinned_max_round_threshold, tessera::unlimited);
  EXPECT_EQ(none.pinned_max_cached_size, tessera::unlimited);
  EXPECT_EQ(none.pinned_reserve_segment_size, 0u);
  EXPECT_EQ(settings(" \t\n"), none);
}

// Each key changes only its own setting.
TEST(pytorch_conf, every_key) {
  using s = pytorch_settings;
  expect_change<pytorch, "backend:cudaMallocAsync">([](s& c) { c.async_backend = true; });
  expect_change<pytorch, "backend:hipMallocAsync">([](s& c) { c.async_backend = true; });
  expect_change<pytorch, "max_split_size_mb:64">([](s& c) { c.max_split_size = 64_MiB; });
  expect_change<pytorch, "max_non_split_rounding_mb:21">([](s& c) { c.max_non_split_rounding = 21_MiB; });
  expect_change<pytorch, "large_segment_size_mb:30">(
      [](s& c) { c.large_segment_size = c.max_non_split_rounding = 30_MiB; });
  expect_change<pytorch, "garbage_collection_threshold:0.123456789">(
      [](s& c) { c.garbage_collection_threshold = {123'456'789}; });
  expect_change<pytorch, "roundup_power2_divisions:8">([](s& c) { c.roundup = divisions::all(8); });
  expect_change<pytorch, "expandable_segments:True">([](s& c) { c.expandable_segments = true; });
  expect_change<pytorch, "expandable_segments_reserve:0.5">(
      [](s& c) { c.expandable_segments_reserve = tessera::percent(50); });
  expect_change<pytorch, "expandable_segments_reserve:40G">(
      [](s& c) { c.expandable_segments_reserve = 40_GiB; });
  EXPECT_EQ((both<pytorch, "expandable_segments_reserve_by_class:[default:0.5,large:2G]">()), s{});
  expect_change<pytorch, "per_process_memory_fraction:0.5">(
      [](s& c) { c.memory_fraction = tessera::percent(50); });
  expect_change<pytorch, "throw_on_cudamalloc_oom:True">([](s& c) { c.throw_on_oom = true; });
  expect_change<pytorch, "release_lock_on_cudamalloc:True">([](s& c) { c.release_lock = true; });
  expect_change<pytorch, "release_lock_on_hipmalloc:True">([](s& c) { c.release_lock = true; });
  expect_change<pytorch, "graph_capture_record_stream_reuse:True">(
      [](s& c) { c.graph_capture_record_stream_reuse = true; });
  expect_change<pytorch, "pinned_use_background_threads:True">(
      [](s& c) { c.pinned_use_background_threads = true; });
  expect_change<pytorch, "pinned_use_cuda_host_register:True">(
      [](s& c) { c.pinned_use_host_register = true; });
  expect_change<pytorch, "pinned_use_hip_host_register:True">(
      [](s& c) { c.pinned_use_host_register = true; });
  expect_change<pytorch, "pinned_num_register_threads:8">([](s& c) { c.pinned_num_register_threads = 8; });
  expect_change<pytorch, "pinned_max_round_threshold_mb:64">(
      [](s& c) { c.pinned_max_round_threshold = 64_MiB; });
  expect_change<pytorch, "pinned_max_cached_size_mb:128">([](s& c) { c.pinned_max_cached_size = 128_MiB; });
  expect_change<pytorch, "pinned_reserve_segment_size_mb:256">(
      [](s& c) { c.pinned_reserve_segment_size = 256_MiB; });
  expect_change<pytorch, "pinned_free_catch_all:True">([](s& c) { c.pinned_free_catch_all = true; });
}

TEST(pytorch_conf, ends_of_ranges_are_legal) {
  EXPECT_EQ((both<pytorch, "max_split_size_mb:20">().max_split_size), 20_MiB);
  EXPECT_EQ((both<pytorch, "max_non_split_rounding_mb:20">().max_non_split_rounding), 20_MiB);
  EXPECT_EQ((both<pytorch, "large_segment_size_mb:11,max_split_size_mb:11">().max_split_size), 11_MiB);
  EXPECT_EQ((both<pytorch, "max_split_size_mb:11,large_segment_size_mb:11">().max_split_size), 11_MiB);
  EXPECT_EQ((both<pytorch, "per_process_memory_fraction:0">().memory_fraction), tessera::fraction{});
  EXPECT_EQ((both<pytorch, "per_process_memory_fraction:1">().memory_fraction), tessera::percent(100));
  EXPECT_EQ((both<pytorch, "pinned_num_register_threads:1">().pinned_num_register_threads), 1u);
  EXPECT_EQ((both<pytorch, "pinned_num_register_threads:128">().pinned_num_register_threads), 128u);
  EXPECT_EQ((both<pytorch, "pinned_max_round_threshold_mb:0">().pinned_max_round_threshold), 0u);
  EXPECT_EQ((both<pytorch, "pinned_max_cached_size_mb:0">().pinned_max_cached_size), 0u);
  EXPECT_EQ((both<pytorch, "pinned_reserve_segment_size_mb:1">().pinned_reserve_segment_size), 1_MiB);
  EXPECT_EQ((both<pytorch, "expandable_segments_reserve:0.000000001">().expandable_segments_reserve),
            tessera::fraction{1});
  EXPECT_EQ((both<pytorch, "expandable_segments_reserve:0.5g">().expandable_segments_reserve), 512_MiB);
  // Values beyond the maximum saturate, and no fraction overflows.
  EXPECT_EQ((both<pytorch, "expandable_segments_reserve:99999999999999999999G">()
                 .expandable_segments_reserve.bytes),
            tessera::unlimited - 1);
  EXPECT_EQ(
      (both<pytorch, "expandable_segments_reserve:99999999999999999999">().expandable_segments_reserve.on(
          80_GiB)),
      tessera::unlimited);
  EXPECT_EQ((both<pytorch, "expandable_segments_reserve_by_class:[]">()), pytorch_settings{});
}

// PyTorch has no exclusions; torch_npu has some.
TEST(pytorch_conf, no_two_keys_conflict) {
  constexpr std::string_view on[] = {"backend:cudaMallocAsync",
                                     "max_split_size_mb:64",
                                     "max_non_split_rounding_mb:64",
                                     "large_segment_size_mb:30",
                                     "garbage_collection_threshold:0.6",
                                     "roundup_power2_divisions:4",
                                     "expandable_segments:True",
                                     "expandable_segments_reserve:0.5",
                                     "expandable_segments_reserve_by_class:[a:1]",
                                     "per_process_memory_fraction:0.5",
                                     "throw_on_cudamalloc_oom:True",
                                     "release_lock_on_cudamalloc:True",
                                     "release_lock_on_hipmalloc:True",
                                     "graph_capture_record_stream_reuse:True",
                                     "pinned_use_background_threads:True",
                                     "pinned_use_cuda_host_register:True",
                                     "pinned_use_hip_host_register:True",
                                     "pinned_num_register_threads:8",
                                     "pinned_max_round_threshold_mb:64",
                                     "pinned_max_cached_size_mb:64",
                                     "pinned_reserve_segment_size_mb:64",
                                     "pinned_free_catch_all:True"};
  static_assert(std::size(on) == pytorch::keys.size());
  for (std::size_t i = 0; i < std::size(on); ++i) {
    EXPECT_EQ(on[i].substr(0, on[i].find(':')), pytorch::keys[i].name);
    for (const std::string_view other : on)
      EXPECT_TRUE(is_legal(std::string(on[i]) + "," + std::string(other))) << on[i] << other;
  }
}

TEST(pytorch_conf, the_last_of_equal_keys_wins) {
  EXPECT_EQ(settings("max_split_size_mb:64,max_split_size_mb:32").max_split_size, 32_MiB);
  EXPECT_EQ(settings("roundup_power2_divisions:4,roundup_power2_divisions:[1:2]").roundup.in_slot[3], 0u);
}

TEST(pytorch_conf, blanks_are_ignored) {
  EXPECT_EQ(settings(" max_split _size_mb :\t4 0 ,\n").max_split_size, 40_MiB);
  EXPECT_EQ(settings("roundup_power2_divisions : [ 64 : 8 , > : 1 ] "),
            settings("roundup_power2_divisions:[64:8,>:1]"));
  EXPECT_EQ(settings("garbage_collection_threshold: 0.6 "), settings("garbage_collection_threshold:0.6"));
  EXPECT_EQ(settings("garbage_collection_threshold:0 . 2 5"), settings("garbage_collection_threshold:0.25"));
}

TEST(pytorch_conf, a_trailing_comma_is_accepted) {
  EXPECT_EQ(settings("expandable_segments:False,"), pytorch_settings{});
  EXPECT_TRUE(settings("expandable_segments:True,max_split_size_mb:40").expandable_segments);
  EXPECT_FALSE(settings("expandable_segments:True,expandable_segments:False").expandable_segments);
  EXPECT_EQ(settings("roundup_power2_divisions:[64:8,],"), settings("roundup_power2_divisions:[64:8]"));
}

TEST(pytorch_conf, sizes) {
  EXPECT_EQ(settings("max_split_size_mb:21").max_split_size, 21_MiB);
  EXPECT_EQ(settings("max_split_size_mb:000000000000000000000000021").max_split_size, 21_MiB);
  // A size beyond the address space means unlimited.
  EXPECT_EQ(settings("max_split_size_mb:17592186044415").max_split_size, std::size_t{17592186044415} << 20);
  EXPECT_EQ(settings("max_split_size_mb:17592186044416").max_split_size, tessera::unlimited);
  EXPECT_EQ(settings("max_split_size_mb:18446744073709551615").max_split_size, tessera::unlimited);
}

TEST(pytorch_conf, fractions) {
  EXPECT_EQ(settings("garbage_collection_threshold:.5").garbage_collection_threshold, tessera::percent(50));
  EXPECT_EQ(settings("garbage_collection_threshold:0.000000001").garbage_collection_threshold.billionths, 1u);
  EXPECT_EQ(settings("garbage_collection_threshold:0.999999999").garbage_collection_threshold.billionths,
            999'999'999u);
  EXPECT_EQ(settings("garbage_collection_threshold:00.60").garbage_collection_threshold,
            tessera::percent(60));
}

// Block sizes under roundup_power2_divisions, from PyTorch's tests and source.
TEST(pytorch_conf, blocks_by_one_number) {
  EXPECT_EQ(block(by_4, 84_MiB), 96_MiB);
  EXPECT_EQ(block("", 84_MiB), 84_MiB);
  EXPECT_EQ(block(by_4, 64_MiB), 64_MiB);
  EXPECT_EQ(block(by_4, 64_MiB + 1), 80_MiB);
  EXPECT_EQ(block(by_4, 1200), 1536u);
  EXPECT_EQ(block(by_4, 2048), 2048u);
  EXPECT_EQ(block(by_4, 2049), 2560u);
  EXPECT_EQ(block(by_4, 1_MiB), 1_MiB);
  EXPECT_EQ(block("roundup_power2_divisions:1", 84_MiB + 1), 84_MiB + 512);
}

TEST(pytorch_conf, blocks_by_a_list) {
  EXPECT_EQ(block(by_list, 84_MiB), 88_MiB);
  EXPECT_EQ(block(by_list, 400_MiB), 512_MiB);
  EXPECT_EQ(block(with_gap, 65_MiB), 80_MiB);
  EXPECT_EQ(block(with_gap, 200_MiB), 208_MiB);
  EXPECT_EQ(block(with_gap, 510_MiB), 512_MiB);
  EXPECT_EQ(block(with_gap, 513_MiB), 544_MiB);
  EXPECT_EQ(block(with_gap, 33_MiB), 33_MiB);
}

TEST(pytorch_conf, slots_of_a_list) {
  const divisions expected{{1, 1, 1, 1, 0, 0, 4, 8, 2, 16, 16, 16, 16, 16, 16, 16}};
  EXPECT_EQ(settings(with_gap).roundup, expected);

  const divisions six = settings("roundup_power2_divisions:[64:8,128:2,256:4,512:2,1024:4,>:1]").roundup;
  EXPECT_EQ(at_mib(six, 32), 8u);
  EXPECT_EQ(at_mib(six, 64), 8u);
  EXPECT_EQ(at_mib(six, 128), 2u);
  EXPECT_EQ(at_mib(six, 256), 4u);
  EXPECT_EQ(at_mib(six, 512), 2u);
  EXPECT_EQ(at_mib(six, 1024), 4u);
  for (std::size_t mib : {2048u, 4096u, 8192u}) EXPECT_EQ(at_mib(six, mib), 1u) << mib;

  const divisions gap = settings("roundup_power2_divisions:[128:8,256:16,512:1,2048:8,>:2]").roundup;
  EXPECT_EQ(at_mib(gap, 64), 8u);
  EXPECT_EQ(at_mib(gap, 128), 8u);
  EXPECT_EQ(at_mib(gap, 256), 16u);
  EXPECT_EQ(at_mib(gap, 512), 1u);
  EXPECT_EQ(at_mib(gap, 1024), 0u);
  EXPECT_EQ(at_mib(gap, 2048), 8u);
  EXPECT_EQ(at_mib(gap, 4096), 2u);
}

TEST(pytorch_conf, ends_of_a_list) {
  divisions but_slot_0 = divisions::all(4);
  but_slot_0.in_slot[0] = 0;
  EXPECT_EQ(settings("roundup_power2_divisions:[>:4]").roundup, but_slot_0);

  // The first size also covers all smaller slots, even after a `>`.
  const divisions turned{{2, 2, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4}};
  EXPECT_EQ(settings("roundup_power2_divisions:[>:4,2:2]").roundup, turned);

  // Sizes beyond the last slot mean the last slot; then `>` covers nothing.
  EXPECT_EQ(settings("roundup_power2_divisions:[9223372036854775808:4,>:8]").roundup, divisions::all(4));
  EXPECT_EQ(settings("roundup_power2_divisions:[32768:4]").roundup, divisions::all(4));
  EXPECT_EQ(settings("roundup_power2_divisions:[1:2147483648]").roundup.in_slot[0], 2147483648u);
  EXPECT_EQ(settings("roundup_power2_divisions:[64:0,>:0]").roundup, divisions{});
  EXPECT_EQ(settings("roundup_power2_divisions:[]").roundup, divisions{});
}

using config_tests::refused;
class pytorch_conf_errors : public testing::TestWithParam<refused> {};

TEST_P(pytorch_conf_errors, have_key_value_rule_and_position) {
  config_tests::expect_refusal(tessera::config::parse<pytorch>(GetParam().text), GetParam().why);
}

using config_tests::at_least_0;
using config_tests::no_colon;
using config_tests::no_comma;
using config_tests::not_bool;
using config_tests::not_decimal;
using config_tests::not_inside;
using config_tests::not_mib;
using config_tests::not_share;
using config_tests::unknown;

constexpr std::string_view split = "max_split_size_mb";
constexpr std::string_view slack = "max_non_split_rounding_mb";
constexpr std::string_view collect = "garbage_collection_threshold";
constexpr std::string_view roundup = "roundup_power2_divisions";

constexpr std::string_view no_key = "a key is expected";
constexpr std::string_view too_small = "must be at least large_segment_size_mb";
constexpr std::string_view not_native = "must be native or cudaMallocAsync";
constexpr std::string_view not_parts = "divisions must be a power of two below 2^32";
constexpr std::string_view not_parts_or_0 = "divisions must be 0 or a power of two below 2^32";
constexpr std::string_view not_size = "a size must be a power of two in MiB, or >";
constexpr std::string_view no_size_colon = "a ':' must follow the size";
constexpr std::string_view not_separated = "a ',' must separate entries, and a ']' must end them";

INSTANTIATE_TEST_SUITE_P(
    keys, pytorch_conf_errors,
    testing::Values(
        refused{"foo:1,bar:2", {"foo", "", unknown, 0, error_code::unknown_key}},
        refused{"Backend:native", {"Backend", "", unknown, 0, error_code::unknown_key}},
        refused{"max_split_size_mb:64,page_size:1g", {"page_size", "", unknown, 21, error_code::unknown_key}},
        refused{",", {",", "", no_key, 0, error_code::malformed}},
        refused{"[", {"[", "", no_key, 0, error_code::malformed}},
        refused{",max_split_size_mb:64", {",", "", no_key, 0, error_code::malformed}},
        refused{"max_split_size_mb:64,,backend:native", {",", "", no_key, 21, error_code::malformed}},
        refused{"max_split_size_mb", {split, "", no_colon, 17, error_code::missing_value}},
        refused{"max_split_size_mb,40", {split, ",", no_colon, 17, error_code::missing_value}},
        refused{"max_split_size_mb:64:", {split, ":", no_comma, 20, error_code::malformed}},
        refused{"roundup_power2_divisions:[1:2]]", {roundup, "]", no_comma, 30, error_code::malformed}},
        refused{"roundup_power2_divisions:[1:2]backend:native",
                {roundup, "backend", no_comma, 30, error_code::malformed}}));

INSTANTIATE_TEST_SUITE_P(
    values, pytorch_conf_errors,
    testing::Values(
        refused{"max_split_size_mb:", {split, "", not_mib, 18, error_code::missing_value}},
        refused{"max_split_size_mb:2", {split, "2", too_small, 18, error_code::out_of_range}},
        refused{"max_split_size_mb:20,large_segment_size_mb:25",
                {split, "20", too_small, 18, error_code::out_of_range}},
        refused{"large_segment_size_mb:10",
                {"large_segment_size_mb", "10", "must be greater than 10 and less than 2^40", 22,
                 error_code::out_of_range}},
        refused{"pinned_num_register_threads:3",
                {"pinned_num_register_threads", "3", "must be a power of two of at most 128", 28,
                 error_code::out_of_range}},
        refused{"pinned_reserve_segment_size_mb:0",
                {"pinned_reserve_segment_size_mb", "0", "must be greater than 0 and less than 2^40", 31,
                 error_code::out_of_range}},
        refused{"max_split_size_mb:-1", {split, "-1", too_small, 18, error_code::out_of_range}},
        refused{"max_non_split_rounding_mb:-1", {slack, "-1", too_small, 26, error_code::out_of_range}},
        refused{"max_split_size_mb:-1abc", {split, "-1abc", not_mib, 18, error_code::not_a_number}},
        refused{"max_split_size_mb:-", {split, "-", not_mib, 18, error_code::not_a_number}},
        refused{"pinned_num_register_threads:-1",
                {"pinned_num_register_threads", "-1", "must be a power of two of at most 128", 28,
                 error_code::out_of_range}},
        refused{"max_split_size_mb:+40", {split, "+40", not_mib, 18, error_code::out_of_range}},
        refused{"max_split_size_mb:40abc", {split, "40abc", not_mib, 18, error_code::not_a_number}},
        refused{"max_split_size_mb:40.0", {split, "40.0", not_mib, 18, error_code::out_of_range}},
        refused{"max_split_size_mb:[40]", {split, "[", not_mib, 18, error_code::not_a_number}},
        refused{"max_split_size_mb:18446744073709551616",
                {split, "18446744073709551616", "must be less than 2^64", 18, error_code::out_of_range}},
        refused{"max_non_split_rounding_mb:19", {slack, "19", too_small, 26, error_code::out_of_range}},
        refused{"garbage_collection_threshold:1.2",
                {collect, "1.2", not_inside, 29, error_code::out_of_range}},
        refused{"garbage_collection_threshold:1", {collect, "1", not_inside, 29, error_code::out_of_range}},
        refused{"garbage_collection_threshold:0", {collect, "0", not_inside, 29, error_code::out_of_range}},
        refused{"garbage_collection_threshold:0.0",
                {collect, "0.0", not_inside, 29, error_code::out_of_range}},
        refused{"garbage_collection_threshold:0.1234567891",
                {collect, "0.1234567891", not_decimal, 29, error_code::out_of_range}},
        refused{"garbage_collection_threshold:-0.5",
                {collect, "-0.5", not_inside, 29, error_code::out_of_range}},
        refused{"garbage_collection_threshold:1e-1",
                {collect, "1e-1", not_decimal, 29, error_code::not_a_number}},
        refused{"garbage_collection_threshold:nan",
                {collect, "nan", not_decimal, 29, error_code::not_a_number}},
        refused{"garbage_collection_threshold:0.5.5",
                {collect, "0.5.5", not_decimal, 29, error_code::not_a_number}},
        refused{"garbage_collection_threshold:.", {collect, ".", not_decimal, 29, error_code::not_a_number}},
        refused{"garbage_collection_threshold:", {collect, "", not_decimal, 29, error_code::missing_value}},
        refused{"expandable_segments:true",
                {"expandable_segments", "true", not_bool, 20, error_code::unknown_value}},
        refused{"expandable_segments:", {"expandable_segments", "", not_bool, 20, error_code::missing_value}},
        refused{"backend:cuda", {"backend", "cuda", not_native, 8, error_code::unknown_value}},
        refused{"backend:", {"backend", "", not_native, 8, error_code::missing_value}}));

INSTANTIATE_TEST_SUITE_P(
    lists, pytorch_conf_errors,
    testing::Values(
        refused{"roundup_power2_divisions:0", {roundup, "0", not_parts, 25, error_code::out_of_range}},
        refused{"roundup_power2_divisions:3", {roundup, "3", not_parts, 25, error_code::out_of_range}},
        refused{"roundup_power2_divisions:4294967296",
                {roundup, "4294967296", not_parts, 25, error_code::out_of_range}},
        refused{"roundup_power2_divisions:", {roundup, "", not_parts, 25, error_code::missing_value}},
        refused{"roundup_power2_divisions:[65:4]", {roundup, "65", not_size, 26, error_code::out_of_range}},
        refused{"roundup_power2_divisions:[0:4]", {roundup, "0", not_size, 26, error_code::out_of_range}},
        refused{"roundup_power2_divisions:[<:4]", {roundup, "<", not_size, 26, error_code::not_a_number}},
        refused{"roundup_power2_divisions:[64:3]",
                {roundup, "3", not_parts_or_0, 29, error_code::out_of_range}},
        refused{"roundup_power2_divisions:[64:]",
                {roundup, "]", not_parts_or_0, 29, error_code::missing_value}},
        refused{"roundup_power2_divisions:[64,8]",
                {roundup, ",", no_size_colon, 28, error_code::missing_value}},
        refused{"roundup_power2_divisions:[64", {roundup, "", no_size_colon, 28, error_code::missing_value}},
        refused{"roundup_power2_divisions:[64:8:128:2]",
                {roundup, ":", not_separated, 30, error_code::malformed}},
        refused{"roundup_power2_divisions:[64:8", {roundup, "", not_separated, 30, error_code::malformed}},
        refused{"roundup_power2_divisions:[64:8,", {roundup, "", not_size, 31, error_code::missing_value}},
        refused{"roundup_power2_divisions:[", {roundup, "", not_size, 26, error_code::missing_value}}));

constexpr std::string_view reserve = "expandable_segments_reserve";
constexpr std::string_view by_class = "expandable_segments_reserve_by_class";
constexpr std::string_view not_reserve =
    "must be a positive fraction of the device, or a number of GiB with a G";
constexpr std::string_view share = "per_process_memory_fraction";
constexpr std::string_view threads = "pinned_num_register_threads";
constexpr std::string_view not_threads = "must be a power of two of at most 128";

INSTANTIATE_TEST_SUITE_P(
    of_cuda, pytorch_conf_errors,
    testing::Values(
        refused{"backend:cudamallocasync",
                {"backend", "cudamallocasync", not_native, 8, error_code::unknown_value}},
        refused{"expandable_segments_reserve:0", {reserve, "0", not_reserve, 28, error_code::out_of_range}},
        refused{"expandable_segments_reserve:0G", {reserve, "0G", not_reserve, 28, error_code::out_of_range}},
        refused{"expandable_segments_reserve:-1", {reserve, "-1", not_reserve, 28, error_code::out_of_range}},
        refused{"expandable_segments_reserve:40M",
                {reserve, "40M", not_reserve, 28, error_code::not_a_number}},
        refused{"expandable_segments_reserve:G", {reserve, "G", not_reserve, 28, error_code::not_a_number}},
        refused{"expandable_segments_reserve:", {reserve, "", not_reserve, 28, error_code::missing_value}},
        refused{"expandable_segments_reserve_by_class:0.5",
                {by_class, "0.5", "must be a list in brackets", 37, error_code::malformed}},
        refused{"expandable_segments_reserve_by_class:",
                {by_class, "", "must be a list in brackets", 37, error_code::missing_value}},
        refused{"expandable_segments_reserve_by_class:[a:1",
                {by_class, "", "must be a list in brackets", 41, error_code::malformed}},
        refused{"per_process_memory_fraction:1.1", {share, "1.1", not_share, 28, error_code::out_of_range}},
        refused{"per_process_memory_fraction:-0.1", {share, "-0.1", not_share, 28, error_code::out_of_range}},
        refused{"throw_on_cudamalloc_oom:1",
                {"throw_on_cudamalloc_oom", "1", not_bool, 24, error_code::unknown_value}},
        refused{"release_lock_on_cudamalloc:none",
                {"release_lock_on_cudamalloc", "none", not_bool, 27, error_code::unknown_value}},
        refused{"release_lock_on_hipmalloc:",
                {"release_lock_on_hipmalloc", "", not_bool, 26, error_code::missing_value}},
        refused{"graph_capture_record_stream_reuse:on",
                {"graph_capture_record_stream_reuse", "on", not_bool, 34, error_code::unknown_value}},
        refused{"pinned_use_background_threads:true",
                {"pinned_use_background_threads", "true", not_bool, 30, error_code::unknown_value}},
        refused{"pinned_use_hip_host_register:none",
                {"pinned_use_hip_host_register", "none", not_bool, 29, error_code::unknown_value}},
        refused{"pinned_num_register_threads:0", {threads, "0", not_threads, 28, error_code::out_of_range}},
        refused{"pinned_num_register_threads:256",
                {threads, "256", not_threads, 28, error_code::out_of_range}},
        refused{"pinned_num_register_threads:none",
                {threads, "none", "must be a whole number", 28, error_code::not_a_number}},
        refused{"pinned_max_cached_size_mb:-1",
                {"pinned_max_cached_size_mb", "-1", at_least_0, 26, error_code::out_of_range}},
        refused{"pinned_free_catch_all:",
                {"pinned_free_catch_all", "", not_bool, 22, error_code::missing_value}},
        refused{"page_size:1g", {"page_size", "", unknown, 0, error_code::unknown_key}},
        refused{"throw_on_npumalloc_oom:True",
                {"throw_on_npumalloc_oom", "", unknown, 0, error_code::unknown_key}}));

}  // namespace
