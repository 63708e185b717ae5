// SPDX-License-Identifier: Apache-2.0
// Rows 43 to 57: the configuration strings that PyTorch and torch_npu accept.
#include <cstddef>
#include <string>
#include <string_view>
#include <variant>

#include <gtest/gtest.h>

#include <tessera/config/pytorch_conf.hpp>
#include <tessera/config/torch_npu_conf.hpp>
#include <tessera/core/bytes.hpp>

namespace {

using namespace tessera::literals;
using error_code = tessera::config::setting_error::error_code;
using tessera::config::pytorch;
using tessera::config::setting_error;
using tessera::config::torch_npu;

template <typename Grammar>
typename Grammar::settings said(std::string_view text) {
  const auto parsed = tessera::config::parse<Grammar>(text);
  EXPECT_EQ(parsed.index(), 0u) << Grammar::name << ": " << text;
  return parsed.index() == 0 ? std::get<0>(parsed) : typename Grammar::settings{};
}
template <typename Grammar>
void expect_refused(std::string_view text, error_code what, std::string_view key, std::string_view value) {
  const auto parsed = tessera::config::parse<Grammar>(text);
  const auto* const why = std::get_if<setting_error>(&parsed);
  ASSERT_NE(why, nullptr) << Grammar::name << ": " << text;
  EXPECT_EQ(why->code, what) << Grammar::name << ": " << text;
  EXPECT_EQ(why->key, key) << Grammar::name << ": " << text;
  EXPECT_EQ(why->value, value) << Grammar::name << ": " << text;
}
void expect_refused_by_both(std::string_view text, error_code what, std::string_view key,
                            std::string_view value) {
  expect_refused<pytorch>(text, what, key, value);
  expect_refused<torch_npu>(text, what, key, value);
}

TEST(torch_row, n043_cuda_0_divisions_are_out_of_range) {
  expect_refused<pytorch>("roundup_power2_divisions:0", error_code::out_of_range, "roundup_power2_divisions",
                          "0");
}
TEST(torch_row, n043_npu_0_divisions_are_none) {
  EXPECT_EQ(said<torch_npu>("roundup_power2_divisions:0").roundup, tessera::divisions{});
}
TEST(torch_row, n044_sizes_and_divisions_of_a_list_are_powers_of_two) {
  expect_refused_by_both("roundup_power2_divisions:[65:4]", error_code::out_of_range,
                         "roundup_power2_divisions", "65");
  expect_refused_by_both("roundup_power2_divisions:[64:3]", error_code::out_of_range,
                         "roundup_power2_divisions", "3");
}
TEST(torch_row, n045_an_unknown_key_is_an_error) {
  expect_refused_by_both("foo:1,bar:2", error_code::unknown_key, "foo", "");
}
TEST(torch_row, n046_a_threshold_above_1_is_an_error) {
  expect_refused_by_both("garbage_collection_threshold:1.2", error_code::out_of_range,
                         "garbage_collection_threshold", "1.2");
}
TEST(torch_row, n047_a_max_split_size_below_20_is_an_error) {
  expect_refused_by_both("max_split_size_mb:2", error_code::out_of_range, "max_split_size_mb", "2");
}
TEST(torch_row, n048_a_max_split_size_below_the_large_segment_is_an_error_in_either_order) {
  expect_refused<pytorch>("max_split_size_mb:20,large_segment_size_mb:25", error_code::out_of_range,
                          "max_split_size_mb", "20");
  expect_refused<pytorch>("large_segment_size_mb:25,max_split_size_mb:20", error_code::out_of_range,
                          "max_split_size_mb", "20");
  expect_refused<torch_npu>("max_split_size_mb:24,large_segment_size_mb:25", error_code::out_of_range,
                            "max_split_size_mb", "24");
}
TEST(torch_row, n049_cuda_a_smaller_large_segment_makes_smaller_sizes_legal) {
  const auto all =
      said<pytorch>("large_segment_size_mb:15,max_split_size_mb:20,max_non_split_rounding_mb:40");
  EXPECT_EQ(all.large_segment_size, 15_MiB);
  EXPECT_EQ(all.max_split_size, 20_MiB);
  EXPECT_EQ(all.max_non_split_rounding, 40_MiB);
}
// torch_npu's document has another bound for the key, whatever the size of segments.
TEST(torch_row, n049_npu_a_max_split_size_is_above_20_all_the_same) {
  expect_refused<torch_npu>("large_segment_size_mb:15,max_split_size_mb:20,max_non_split_rounding_mb:40",
                            error_code::out_of_range, "max_split_size_mb", "20");
  EXPECT_EQ(said<torch_npu>("large_segment_size_mb:15,max_split_size_mb:21").max_split_size, 21_MiB);
}
TEST(torch_row, n050_a_large_segment_is_above_10M) {
  expect_refused_by_both("large_segment_size_mb:5", error_code::out_of_range, "large_segment_size_mb", "5");
}
TEST(torch_row, n051_a_max_split_size_below_a_larger_large_segment_is_an_error) {
  expect_refused_by_both("large_segment_size_mb:50,max_split_size_mb:30", error_code::out_of_range,
                         "max_split_size_mb", "30");
}
TEST(torch_row, n052_cuda_wrong_values_of_its_own_keys_are_errors) {
  expect_refused<pytorch>("release_lock_on_cudamalloc:none", error_code::unknown_value,
                          "release_lock_on_cudamalloc", "none");
  expect_refused<pytorch>("pinned_use_cuda_host_register:none", error_code::unknown_value,
                          "pinned_use_cuda_host_register", "none");
  expect_refused<pytorch>("pinned_num_register_threads:none", error_code::not_a_number,
                          "pinned_num_register_threads", "none");
  expect_refused<pytorch>("pinned_num_register_threads:1024", error_code::out_of_range,
                          "pinned_num_register_threads", "1024");
}
TEST(torch_row, n053_a_memory_fraction_out_of_range_is_an_error_that_names_its_key) {
  constexpr std::string_view key = "per_process_memory_fraction";
  const auto expect = [&](std::string_view value, error_code what) {
    expect_refused_by_both(std::string(key) + ":" + std::string(value), what, key, value);
  };
  expect("-0.1", error_code::out_of_range);
  expect("1.1", error_code::out_of_range);
  expect("2.0", error_code::out_of_range);
  expect("", error_code::missing_value);
}
TEST(torch_row, n055_a_comma_may_end_the_text) {
  EXPECT_EQ(said<pytorch>("expandable_segments:False,"), pytorch::settings{});
  EXPECT_EQ(said<torch_npu>("expandable_segments:False,"), torch_npu::settings{});
}
TEST(torch_row, n056_cuda_expandable_segments_go_with_max_split_size) {
  const auto both = said<pytorch>("expandable_segments:True,max_split_size_mb:40");
  EXPECT_TRUE(both.expandable_segments);
  EXPECT_EQ(both.max_split_size, 40_MiB);
}
TEST(torch_row, n056_npu_expandable_segments_exclude_max_split_size) {
  expect_refused<torch_npu>("expandable_segments:True,max_split_size_mb:40", error_code::excluded_by,
                            "max_split_size_mb", "");
}
// PyTorch checks no delimiter, so it accepts this string. The released torch_npu does not.
TEST(torch_row, n057_a_wrong_delimiter_is_an_error_unlike_in_pytorch) {
  expect_refused_by_both("max_split_size_mb,40", error_code::missing_value, "max_split_size_mb", ",");
}

}  // namespace
