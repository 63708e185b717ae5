// SPDX-License-Identifier: Apache-2.0
// Checks Paddle's flags against Paddle's document on memory: ranges, defaults and examples.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include <tessera/config/paddle_flags.hpp>
#include <tessera/core/bytes.hpp>

#include "refused.hpp"

namespace {

using namespace tessera::literals;
using config_tests::both;
using config_tests::expect_change;
using config_tests::refused;
using tessera::percent;
using tessera::unlimited;
using error_code = tessera::config::setting_error::error_code;
using tessera::config::paddle;
using paddle_settings = tessera::config::paddle::settings;

constexpr bool is_legal(std::string_view text) { return config_tests::is_legal<paddle>(text); }
constexpr paddle_settings settings(std::string_view text) { return config_tests::settings<paddle>(text); }

TEST(paddle_flags, defaults) {
  const paddle_settings none = both<paddle, "">();
  EXPECT_EQ(none, paddle_settings{});
  EXPECT_FALSE(none.naive_best_fit);
  EXPECT_EQ(none.fraction_of_gpu_memory, percent(92));
  EXPECT_EQ(none.initial_gpu_memory, 0u);
  EXPECT_EQ(none.reallocate_gpu_memory, 0u);
  EXPECT_EQ(none.gpu_memory_limit, 0u);
  EXPECT_EQ(none.retry_milliseconds, 10'000u);
  EXPECT_EQ(none.auto_growth_chunk_size, 0u);
  EXPECT_FALSE(none.free_idle_chunk);
  EXPECT_FALSE(none.free_when_no_cache_hit);
  EXPECT_EQ(none.small_pool_size, 0u);
  EXPECT_EQ(none.small_pool_chunk_size, 0u);
  EXPECT_EQ(none.large_pool_chunk_size, 0u);
  EXPECT_FALSE(none.virtual_memory);
  EXPECT_FALSE(none.multi_scale);
  EXPECT_FALSE(none.virtual_memory_v2);
  EXPECT_EQ(none.vmm_small_pool_size, 1_MiB);
  EXPECT_EQ(none.vmm_v2_handle_size, 16_MiB);
  EXPECT_TRUE(none.vmm_v2_remap_on_oom);
  EXPECT_FALSE(none.enable_compact_mem);
  EXPECT_EQ(none.max_reserved_threshold, 70u);
  EXPECT_EQ(none.cur_allocated_threshold, 55u);
  EXPECT_FALSE(none.try_allocate);
  EXPECT_EQ(none.garbage_threshold, 0u);
  EXPECT_EQ(none.memory_fraction_of_eager_deletion, percent(100));
  EXPECT_TRUE(none.fast_eager_deletion);
}

// Each flag changes only its own setting, except one that has another default for the size of the small pool.
TEST(paddle_flags, every_flag) {
  using s = paddle_settings;
  expect_change<paddle, "FLAGS_allocator_strategy=naive_best_fit">([](s& c) { c.naive_best_fit = true; });
  expect_change<paddle, "FLAGS_fraction_of_gpu_memory_to_use=0.5">(
      [](s& c) { c.fraction_of_gpu_memory = percent(50); });
  expect_change<paddle, "FLAGS_initial_gpu_memory_in_mb=100">([](s& c) { c.initial_gpu_memory = 100_MiB; });
  expect_change<paddle, "FLAGS_reallocate_gpu_memory_in_mb=50">(
      [](s& c) { c.reallocate_gpu_memory = 50_MiB; });
  expect_change<paddle, "FLAGS_gpu_memory_limit_mb=4096">([](s& c) { c.gpu_memory_limit = 4_GiB; });
  expect_change<paddle, "FLAGS_gpu_allocator_retry_time=250">([](s& c) { c.retry_milliseconds = 250; });
  expect_change<paddle, "FLAGS_auto_growth_chunk_size_in_mb=8">(
      [](s& c) { c.auto_growth_chunk_size = 8_MiB; });
  expect_change<paddle, "FLAGS_free_idle_chunk=True">([](s& c) { c.free_idle_chunk = true; });
  expect_change<paddle, "FLAGS_free_when_no_cache_hit=True">([](s& c) { c.free_when_no_cache_hit = true; });
  expect_change<paddle, "FLAGS_small_pool_size_in_mb=1">([](s& c) { c.small_pool_size = 1_MiB; });
  expect_change<paddle, "FLAGS_small_pool_auto_growth_chunk_size_in_mb=2">(
      [](s& c) { c.small_pool_chunk_size = 2_MiB; });
  expect_change<paddle, "FLAGS_large_pool_auto_growth_chunk_size_in_mb=16">(
      [](s& c) { c.large_pool_chunk_size = 16_MiB; });
  expect_change<paddle, "FLAGS_use_virtual_memory_auto_growth=True">([](s& c) { c.virtual_memory = true; });
  expect_change<paddle, "FLAGS_use_multi_scale_virtual_memory_auto_growth=True">(
      [](s& c) { c.multi_scale = true, c.vmm_small_pool_size = 0; });
  expect_change<paddle, "FLAGS_use_vmm_auto_growth_best_fit_allocator_v2=True">(
      [](s& c) { c.virtual_memory_v2 = true; });
  expect_change<paddle, "FLAGS_vmm_small_pool_size_in_mb=0">([](s& c) { c.vmm_small_pool_size = 0; });
  expect_change<paddle, "FLAGS_vmm_v2_large_pool_handle_size_in_mb=2">(
      [](s& c) { c.vmm_v2_handle_size = 2_MiB; });
  expect_change<paddle, "FLAGS_vmm_v2_remap_on_oom=False">([](s& c) { c.vmm_v2_remap_on_oom = false; });
  expect_change<paddle, "FLAGS_enable_compact_mem=0">([](s&) {});
  expect_change<paddle, "FLAGS_max_reserved_threshold_in_gb=80">([](s& c) { c.max_reserved_threshold = 80; });
  expect_change<paddle, "FLAGS_cur_allocated_threshold_in_gb=0">([](s& c) { c.cur_allocated_threshold = 0; });
  expect_change<paddle, "FLAGS_try_allocate=1">([](s& c) { c.try_allocate = true; });
  expect_change<paddle, "FLAGS_eager_delete_tensor_gb=2">([](s& c) { c.garbage_threshold = 2_GiB; });
  expect_change<paddle, "FLAGS_memory_fraction_of_eager_deletion=0.25">(
      [](s& c) { c.memory_fraction_of_eager_deletion = percent(25); });
  expect_change<paddle, "FLAGS_fast_eager_deletion_mode=False">([](s& c) { c.fast_eager_deletion = false; });
}

// The examples of the document, in its order.
TEST(paddle_flags, examples_of_the_document) {
  EXPECT_EQ((both<paddle, "FLAGS_fraction_of_gpu_memory_to_use=0.4">().fraction_of_gpu_memory), percent(40));
  EXPECT_EQ((both<paddle, "FLAGS_fraction_of_gpu_memory_to_use=0">().fraction_of_gpu_memory), percent(0));
  EXPECT_FALSE((both<paddle, "FLAGS_allocator_strategy=auto_growth">().naive_best_fit));
  EXPECT_TRUE((both<paddle, "FLAGS_allocator_strategy=naive_best_fit">().naive_best_fit));
  EXPECT_EQ((both<paddle, "FLAGS_eager_delete_tensor_gb=0">().garbage_threshold), 0u);
  EXPECT_EQ((both<paddle, "FLAGS_eager_delete_tensor_gb=1">().garbage_threshold), 1_GiB);
  EXPECT_EQ((both<paddle, "FLAGS_eager_delete_tensor_gb=-1">().garbage_threshold), unlimited);
  EXPECT_EQ((both<paddle, "FLAGS_memory_fraction_of_eager_deletion=1">().memory_fraction_of_eager_deletion),
            percent(100));
  EXPECT_EQ((both<paddle, "FLAGS_memory_fraction_of_eager_deletion=0.6">().memory_fraction_of_eager_deletion),
            percent(60));
  EXPECT_EQ((both<paddle, "FLAGS_memory_fraction_of_eager_deletion=0">().memory_fraction_of_eager_deletion),
            percent(0));
  EXPECT_TRUE((both<paddle, "FLAGS_fast_eager_deletion_mode=True">().fast_eager_deletion));
  EXPECT_EQ((both<paddle, "FLAGS_gpu_memory_limit_mb=0">().gpu_memory_limit), 0u);
}

TEST(paddle_flags, ends_of_ranges_are_legal) {
  EXPECT_EQ((both<paddle, "FLAGS_fraction_of_gpu_memory_to_use=1.0">().fraction_of_gpu_memory), percent(100));
  EXPECT_EQ((both<paddle, "FLAGS_gpu_memory_limit_mb=18446744073709551615">().gpu_memory_limit), unlimited);
  EXPECT_EQ((both<paddle, "FLAGS_gpu_allocator_retry_time=0">().retry_milliseconds), 0u);
  EXPECT_EQ((both<paddle, "FLAGS_gpu_allocator_retry_time=9007199254740991">().retry_milliseconds),
            9007199254740991u);
  EXPECT_EQ((both<paddle, "FLAGS_eager_delete_tensor_gb=0.5">().garbage_threshold), 512_MiB);
  EXPECT_EQ((both<paddle, "FLAGS_eager_delete_tensor_gb=0.000000001">().garbage_threshold), 1u);
  EXPECT_EQ((both<paddle, "FLAGS_eager_delete_tensor_gb=1073741823.999999999">().garbage_threshold),
            (std::size_t{1} << 60) - 2);
  EXPECT_EQ((both<paddle, "FLAGS_eager_delete_tensor_gb=-0">().garbage_threshold), 0u);
  EXPECT_EQ((both<paddle, "FLAGS_eager_delete_tensor_gb=-0.000000001">().garbage_threshold), unlimited);
  EXPECT_EQ((both<paddle, "FLAGS_eager_delete_tensor_gb=-99999999999999999999">().garbage_threshold),
            unlimited);
}

TEST(paddle_flags, a_switch_is_written_in_three_ways) {
  EXPECT_TRUE((both<paddle, "FLAGS_free_idle_chunk=1">().free_idle_chunk));
  EXPECT_TRUE((both<paddle, "FLAGS_free_idle_chunk=true">().free_idle_chunk));
  EXPECT_TRUE((both<paddle, "FLAGS_free_idle_chunk=True">().free_idle_chunk));
  EXPECT_FALSE((both<paddle, "FLAGS_fast_eager_deletion_mode=0">().fast_eager_deletion));
  EXPECT_FALSE((both<paddle, "FLAGS_fast_eager_deletion_mode=false">().fast_eager_deletion));
  EXPECT_FALSE((both<paddle, "FLAGS_fast_eager_deletion_mode=False">().fast_eager_deletion));
}

TEST(paddle_flags, can_be_combined) {
  const auto several = both<paddle,
                            "FLAGS_allocator_strategy=auto_growth,FLAGS_gpu_memory_limit_mb=1024,"
                            "FLAGS_eager_delete_tensor_gb=-1.0,FLAGS_fast_eager_deletion_mode=0,">();
  EXPECT_FALSE(several.naive_best_fit);
  EXPECT_EQ(several.gpu_memory_limit, 1_GiB);
  EXPECT_EQ(several.garbage_threshold, unlimited);
  EXPECT_FALSE(several.fast_eager_deletion);
  EXPECT_EQ(settings(" FLAGS_free_idle_chunk =\t1 ,\n").free_idle_chunk, true);
  EXPECT_EQ(settings("FLAGS_gpu_memory_limit_mb=1,FLAGS_gpu_memory_limit_mb=2").gpu_memory_limit, 2_MiB);
  // No two flags conflict, except those of two strategies.
  const auto is_excluded = [](const auto& one, const auto& other) {
    for (const auto& pair : paddle::exclusions) {
      if ((pair.one == one.name && pair.other == other.name) ||
          (pair.other == one.name && pair.one == other.name))
        return true;
    }
    return false;
  };
  for (const auto& one : paddle::keys) {
    for (const auto& other : paddle::keys) {
      const auto set = [](const auto& key) {
        const bool is_choice = key.format == tessera::config::detail::value_format::choice;
        return std::string(key.name) + (!is_choice                                     ? "=1"
                                        : key.allowed.starts_with("auto")              ? "=naive_best_fit"
                                        : key.allowed.find("True") == key.allowed.npos ? "=False"
                                                                                       : "=True");
      };
      EXPECT_EQ(is_legal(set(one) + "," + set(other)), !is_excluded(one, other)) << set(one) << set(other);
    }
  }
}

TEST(paddle_flags, multi_scale_has_another_default_for_the_small_pool) {
  EXPECT_EQ((both<paddle, "FLAGS_use_multi_scale_virtual_memory_auto_growth=0">()), paddle_settings{});
  EXPECT_EQ((both<paddle,
                  "FLAGS_vmm_small_pool_size_in_mb=2,"
                  "FLAGS_use_multi_scale_virtual_memory_auto_growth=1">()),
            (paddle_settings{.multi_scale = true, .vmm_small_pool_size = 2_MiB}));
}

TEST(paddle_flags, the_error_for_moving_live_blocks_names_the_flag_and_the_reason) {
  const auto parsed = tessera::config::parse<paddle>("FLAGS_try_allocate=1,FLAGS_enable_compact_mem=true");
  ASSERT_EQ(parsed.index(), 1u);
  EXPECT_STREQ(tessera::config::bad_setting("flags", std::get<1>(parsed)).what(),
               "flags, character 46: FLAGS_enable_compact_mem true: must be False: True is not supported, "
               "because Paddle then moves live blocks");
}

class paddle_flags_errors : public testing::TestWithParam<refused> {};
TEST_P(paddle_flags_errors, have_key_value_rule_and_position) {
  config_tests::expect_refusal(tessera::config::parse<paddle>(GetParam().text), GetParam().why);
}

using config_tests::at_least_0;
using config_tests::no_comma;
using config_tests::not_decimal;
using config_tests::not_mib;
using config_tests::not_share;
using config_tests::unknown;

constexpr std::string_view not_switch = "must be True, true, 1, False, false or 0";
constexpr std::string_view strategy = "FLAGS_allocator_strategy";
constexpr std::string_view share = "FLAGS_fraction_of_gpu_memory_to_use";
constexpr std::string_view limit = "FLAGS_gpu_memory_limit_mb";
constexpr std::string_view retry = "FLAGS_gpu_allocator_retry_time";
constexpr std::string_view idle = "FLAGS_free_idle_chunk";
constexpr std::string_view garbage = "FLAGS_eager_delete_tensor_gb";

constexpr std::string_view no_sign = "a '=' must follow the flag";
constexpr std::string_view not_strategy = "must be auto_growth or naive_best_fit";
constexpr std::string_view not_whole = "must be a whole number";
constexpr std::string_view live_blocks =
    "must be False: True is not supported, because Paddle then moves live blocks";

INSTANTIATE_TEST_SUITE_P(
    keys, paddle_flags_errors,
    testing::Values(
        refused{"allocator_strategy=auto_growth",
                {"allocator_strategy", "", unknown, 0, error_code::unknown_key}},
        refused{"FLAGS_Allocator_strategy=auto_growth",
                {"FLAGS_Allocator_strategy", "", unknown, 0, error_code::unknown_key}},
        refused{"FLAGS_free_idle_chunk=1,max_split_size_mb=32",
                {"max_split_size_mb", "", unknown, 24, error_code::unknown_key}},
        refused{"FLAGS_allocator_strategy:auto_growth",
                {"FLAGS_allocator_strategy:auto_growth", "", unknown, 0, error_code::unknown_key}},
        refused{"FLAGS_allocator_strategy", {strategy, "", no_sign, 24, error_code::missing_value}},
        refused{"FLAGS_allocator_strategy,auto_growth",
                {strategy, ",", no_sign, 24, error_code::missing_value}},
        refused{"FLAGS_free_idle_chunk=1=1", {idle, "=", no_comma, 23, error_code::malformed}},
        refused{"=", {"=", "", "a key is expected", 0, error_code::malformed}},
        refused{"FLAGS_free_idle_chunk=1,,", {",", "", "a key is expected", 24, error_code::malformed}}));

INSTANTIATE_TEST_SUITE_P(
    values, paddle_flags_errors,
    testing::Values(
        refused{"FLAGS_allocator_strategy=thread_local",
                {strategy, "thread_local", not_strategy, 25, error_code::unknown_value}},
        refused{"FLAGS_allocator_strategy=", {strategy, "", not_strategy, 25, error_code::missing_value}},
        refused{"FLAGS_allocator_strategy=,", {strategy, ",", not_strategy, 25, error_code::missing_value}},
        refused{"FLAGS_fraction_of_gpu_memory_to_use=1.000000001",
                {share, "1.000000001", not_share, 36, error_code::out_of_range}},
        refused{"FLAGS_fraction_of_gpu_memory_to_use=-0.1",
                {share, "-0.1", not_share, 36, error_code::out_of_range}},
        refused{"FLAGS_fraction_of_gpu_memory_to_use=40%",
                {share, "40%", not_decimal, 36, error_code::not_a_number}},
        refused{"FLAGS_memory_fraction_of_eager_deletion=2",
                {"FLAGS_memory_fraction_of_eager_deletion", "2", not_share, 40, error_code::out_of_range}},
        refused{"FLAGS_gpu_memory_limit_mb=-1", {limit, "-1", at_least_0, 26, error_code::out_of_range}},
        refused{"FLAGS_gpu_memory_limit_mb=1.5", {limit, "1.5", not_mib, 26, error_code::out_of_range}},
        refused{"FLAGS_gpu_memory_limit_mb=18446744073709551616",
                {limit, "18446744073709551616", "must be less than 2^64", 26, error_code::out_of_range}},
        refused{"FLAGS_gpu_allocator_retry_time=9007199254740992",
                {retry, "9007199254740992", "must be from 0 to 2^53 - 1", 31, error_code::out_of_range}},
        refused{"FLAGS_auto_growth_chunk_size_in_mb=1099511627776",
                {"FLAGS_auto_growth_chunk_size_in_mb", "1099511627776", "must be from 0 to 2^40 - 1", 35,
                 error_code::out_of_range}},
        refused{"FLAGS_gpu_allocator_retry_time=-1",
                {retry, "-1", "must be from 0 to 2^53 - 1", 31, error_code::out_of_range}},
        refused{"FLAGS_gpu_allocator_retry_time=", {retry, "", not_whole, 31, error_code::missing_value}},
        refused{"FLAGS_vmm_v2_large_pool_handle_size_in_mb=0",
                {"FLAGS_vmm_v2_large_pool_handle_size_in_mb", "0", "must be from 1 to 2^40 - 1", 42,
                 error_code::out_of_range}},
        refused{"FLAGS_vmm_small_pool_size_in_mb=1099511627776",
                {"FLAGS_vmm_small_pool_size_in_mb", "1099511627776", "must be from 0 to 2^40 - 1", 32,
                 error_code::out_of_range}},
        refused{"FLAGS_vmm_small_pool_size_in_mb=-1",
                {"FLAGS_vmm_small_pool_size_in_mb", "-1", "must be from 0 to 2^40 - 1", 32,
                 error_code::out_of_range}},
        refused{"FLAGS_use_virtual_memory_auto_growth=2",
                {"FLAGS_use_virtual_memory_auto_growth", "2", not_switch, 37, error_code::unknown_value}},
        refused{"FLAGS_enable_compact_mem=True",
                {"FLAGS_enable_compact_mem", "True", live_blocks, 25, error_code::unknown_value}},
        refused{"FLAGS_max_reserved_threshold_in_gb=-1",
                {"FLAGS_max_reserved_threshold_in_gb", "-1", "must be from 0 to 2^63 - 1", 35,
                 error_code::out_of_range}},
        refused{"FLAGS_cur_allocated_threshold_in_gb=9223372036854775808",
                {"FLAGS_cur_allocated_threshold_in_gb", "9223372036854775808", "must be from 0 to 2^63 - 1",
                 36, error_code::out_of_range}},
        refused{"FLAGS_free_idle_chunk=yes", {idle, "yes", not_switch, 22, error_code::unknown_value}},
        refused{"FLAGS_free_idle_chunk=2", {idle, "2", not_switch, 22, error_code::unknown_value}},
        refused{"FLAGS_eager_delete_tensor_gb=1073741824",
                {garbage, "1073741824", "must be less than 2^30", 29, error_code::out_of_range}},
        refused{"FLAGS_eager_delete_tensor_gb=-", {garbage, "-", not_decimal, 29, error_code::not_a_number}},
        refused{"FLAGS_eager_delete_tensor_gb=-x",
                {garbage, "-x", not_decimal, 29, error_code::not_a_number}},
        refused{"FLAGS_eager_delete_tensor_gb=", {garbage, "", not_decimal, 29, error_code::missing_value}},
        refused{"FLAGS_eager_delete_tensor_gb=--1",
                {garbage, "--1", not_decimal, 29, error_code::not_a_number}}));

constexpr std::string_view other_strategy = "virtual memory needs allocator_strategy=auto_growth";

INSTANTIATE_TEST_SUITE_P(
    exclusions, paddle_flags_errors,
    testing::Values(refused{"FLAGS_allocator_strategy=naive_best_fit,FLAGS_use_virtual_memory_auto_growth=1",
                            {"FLAGS_use_virtual_memory_auto_growth", "", other_strategy, 40,
                             error_code::excluded_by, strategy}},
                    refused{"FLAGS_allocator_strategy=naive_best_fit,"
                            "FLAGS_use_multi_scale_virtual_memory_auto_growth=1",
                            {"FLAGS_use_multi_scale_virtual_memory_auto_growth", "", other_strategy, 40,
                             error_code::excluded_by, strategy}},
                    refused{"FLAGS_use_vmm_auto_growth_best_fit_allocator_v2=1,"
                            "FLAGS_allocator_strategy=naive_best_fit",
                            {strategy, "", other_strategy, 50, error_code::excluded_by,
                             "FLAGS_use_vmm_auto_growth_best_fit_allocator_v2"}}));

}  // namespace
