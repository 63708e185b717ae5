// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cstddef>
#include <cstdint>
#include <ostream>
#include <random>
#include <string>
#include <string_view>
#include <variant>

#include <gtest/gtest.h>

#include <tessera/config/pytorch.hpp>
#include <tessera/core/bytes.hpp>
#include <tessera/core/divisions.hpp>
#include <tessera/core/fraction.hpp>
#include <tessera/policy/rounding.hpp>

#include "refused.hpp"

namespace {

using namespace tessera::literals;
using tessera::divisions;
using tessera::config::fault;
using tessera::config::pytorch_settings;
using tessera::config::setting_error;

constexpr bool is_legal(std::string_view text) {
  return std::holds_alternative<pytorch_settings>(tessera::config::parse<tessera::config::pytorch>(text));
}
constexpr pytorch_settings settings(std::string_view text) {
  return std::get<pytorch_settings>(tessera::config::parse<tessera::config::pytorch>(text));
}
constexpr setting_error error(std::string_view text) {
  return std::get<setting_error>(tessera::config::parse<tessera::config::pytorch>(text));
}

/// The block that serves a request under a setting of roundup_power2_divisions.
constexpr std::size_t block(std::string_view roundup, std::size_t request) {
  tessera::round_to_divisions<512> rounding;
  rounding.table = roundup.empty() ? divisions{} : settings(roundup).roundup;
  return rounding.block_size(request);
}
constexpr std::uint32_t at_mib(const divisions& table, std::size_t mib) { return table.of(mib << 20); }

constexpr std::string_view by_4 = "roundup_power2_divisions:4";
constexpr std::string_view by_list = "roundup_power2_divisions:[64:8,128:2,256:2,512:2,1024:1,>:1]";
constexpr std::string_view with_gap = "roundup_power2_divisions:[8:1,64:4,128:8,256:2,>:16]";

// The parser works in constant expressions.
static_assert(settings("") == pytorch_settings{});
static_assert(settings("max_split_size_mb:32,garbage_collection_threshold:0.6").max_split_size == 32_MiB);
static_assert(error("foo:1,bar:2") == setting_error{"foo", "", "no such key", 0, fault::unknown_key});

TEST(pytorch_conf, defaults) {
  const pytorch_settings none = settings("");
  EXPECT_EQ(none.max_split_size, tessera::unlimited);
  EXPECT_EQ(none.max_non_split_rounding, 20_MiB);
  EXPECT_EQ(none.garbage_collection_threshold, tessera::fraction{});
  EXPECT_EQ(none.roundup, divisions{});
  EXPECT_EQ(settings(" \t\n"), none);
}

TEST(pytorch_conf, every_key) {
  const pytorch_settings all = settings(
      "max_split_size_mb:64,max_non_split_rounding_mb:21,garbage_collection_threshold:0.123456789,"
      "roundup_power2_divisions:8,expandable_segments:False,backend:native");
  EXPECT_EQ(all.max_split_size, 64_MiB);
  EXPECT_EQ(all.max_non_split_rounding, 21_MiB);
  EXPECT_EQ(all.garbage_collection_threshold.billionths, 123'456'789u);
  EXPECT_EQ(all.roundup, divisions::all(8));
}

TEST(pytorch_conf, the_last_of_equal_keys_counts) {
  EXPECT_EQ(settings("max_split_size_mb:64,max_split_size_mb:32").max_split_size, 32_MiB);
  EXPECT_EQ(settings("roundup_power2_divisions:4,roundup_power2_divisions:[1:2]").roundup.in_slot[3], 0u);
}

TEST(pytorch_conf, blanks_do_not_count) {
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
  // What exceeds the address space is no bound.
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

// What PyTorch's own tests, and its source, say of blocks under roundup_power2_divisions.
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

  // The first size fills all smaller slots, also behind a `>`.
  const divisions turned{{2, 2, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4}};
  EXPECT_EQ(settings("roundup_power2_divisions:[>:4,2:2]").roundup, turned);

  // Sizes beyond the last slot mean the last slot, and leave nothing to `>`.
  EXPECT_EQ(settings("roundup_power2_divisions:[9223372036854775808:4,>:8]").roundup, divisions::all(4));
  EXPECT_EQ(settings("roundup_power2_divisions:[32768:4]").roundup, divisions::all(4));
  EXPECT_EQ(settings("roundup_power2_divisions:[1:2147483648]").roundup.in_slot[0], 2147483648u);
  EXPECT_EQ(settings("roundup_power2_divisions:[64:0,>:0]").roundup, divisions{});
  EXPECT_EQ(settings("roundup_power2_divisions:[]").roundup, divisions{});
}

using config_tests::refused;
class pytorch_conf_errors : public testing::TestWithParam<refused> {};

TEST_P(pytorch_conf_errors, say_key_value_rule_and_place) {
  config_tests::expect_refusal(tessera::config::parse<tessera::config::pytorch>(GetParam().text),
                               GetParam().why);
}

constexpr std::string_view split = "max_split_size_mb";
constexpr std::string_view slack = "max_non_split_rounding_mb";
constexpr std::string_view collect = "garbage_collection_threshold";
constexpr std::string_view roundup = "roundup_power2_divisions";

constexpr std::string_view unknown = "no such key";
constexpr std::string_view no_key = "a key is expected";
constexpr std::string_view no_colon = "a ':' must follow the key";
constexpr std::string_view no_comma = "a ',' must part settings";
constexpr std::string_view not_mib = "must be a whole number of MiB";
constexpr std::string_view too_small = "must be at least large_segment_size_mb";
constexpr std::string_view not_decimal = "must be a decimal number of at most 9 places";
constexpr std::string_view not_inside = "must be greater than 0 and less than 1";
constexpr std::string_view not_bool = "must be True or False";
constexpr std::string_view not_native = "must be native or cudaMallocAsync";
constexpr std::string_view not_parts = "divisions must be a power of two below 2^32";
constexpr std::string_view not_parts_or_0 = "divisions must be 0 or a power of two below 2^32";
constexpr std::string_view not_size = "a size must be a power of two in MiB, or >";
constexpr std::string_view no_size_colon = "a ':' must follow the size";
constexpr std::string_view not_parted = "a ',' must part entries, and a ']' end them";

INSTANTIATE_TEST_SUITE_P(
    keys, pytorch_conf_errors,
    testing::Values(refused{"foo:1,bar:2", {"foo", "", unknown, 0}},
                    refused{"Backend:native", {"Backend", "", unknown, 0}},
                    refused{"max_split_size_mb:64,page_size:1g", {"page_size", "", unknown, 21}},
                    refused{",", {",", "", no_key, 0}}, refused{"[", {"[", "", no_key, 0}},
                    refused{",max_split_size_mb:64", {",", "", no_key, 0}},
                    refused{"max_split_size_mb:64,,backend:native", {",", "", no_key, 21}},
                    refused{"max_split_size_mb", {split, "", no_colon, 17}},
                    refused{"max_split_size_mb,40", {split, ",", no_colon, 17}},
                    refused{"max_split_size_mb:64:", {split, ":", no_comma, 20}},
                    refused{"roundup_power2_divisions:[1:2]]", {roundup, "]", no_comma, 30}},
                    refused{"roundup_power2_divisions:[1:2]backend:native",
                            {roundup, "backend", no_comma, 30}}));

INSTANTIATE_TEST_SUITE_P(
    values, pytorch_conf_errors,
    testing::Values(
        refused{"max_split_size_mb:", {split, "", not_mib, 18}},
        refused{"max_split_size_mb:2", {split, "2", too_small, 18}},
        refused{"max_split_size_mb:20,large_segment_size_mb:25", {split, "20", too_small, 18}},
        refused{"large_segment_size_mb:10", {"large_segment_size_mb", "10", "must be greater than 10", 22}},
        refused{"pinned_num_register_threads:3",
                {"pinned_num_register_threads", "3", "must be a power of two of at most 128", 28}},
        refused{"pinned_reserve_segment_size_mb:0",
                {"pinned_reserve_segment_size_mb", "0", "must be greater than 0", 31}},
        refused{"max_split_size_mb:-1", {split, "-1", not_mib, 18}},
        refused{"max_split_size_mb:+40", {split, "+40", not_mib, 18}},
        refused{"max_split_size_mb:40abc", {split, "40abc", not_mib, 18}},
        refused{"max_split_size_mb:40.0", {split, "40.0", not_mib, 18}},
        refused{"max_split_size_mb:[40]", {split, "[", not_mib, 18}},
        refused{"max_split_size_mb:18446744073709551616", {split, "18446744073709551616", not_mib, 18}},
        refused{"max_non_split_rounding_mb:19", {slack, "19", too_small, 26}},
        refused{"garbage_collection_threshold:1.2", {collect, "1.2", not_inside, 29}},
        refused{"garbage_collection_threshold:1", {collect, "1", not_inside, 29}},
        refused{"garbage_collection_threshold:0", {collect, "0", not_inside, 29}},
        refused{"garbage_collection_threshold:0.0", {collect, "0.0", not_inside, 29}},
        refused{"garbage_collection_threshold:0.1234567891", {collect, "0.1234567891", not_decimal, 29}},
        refused{"garbage_collection_threshold:-0.5", {collect, "-0.5", not_decimal, 29}},
        refused{"garbage_collection_threshold:1e-1", {collect, "1e-1", not_decimal, 29}},
        refused{"garbage_collection_threshold:nan", {collect, "nan", not_decimal, 29}},
        refused{"garbage_collection_threshold:0.5.5", {collect, "0.5.5", not_decimal, 29}},
        refused{"garbage_collection_threshold:.", {collect, ".", not_decimal, 29}},
        refused{"garbage_collection_threshold:", {collect, "", not_decimal, 29}},
        refused{"expandable_segments:true", {"expandable_segments", "true", not_bool, 20}},
        refused{"expandable_segments:", {"expandable_segments", "", not_bool, 20}},
        refused{"backend:cuda", {"backend", "cuda", not_native, 8}},
        refused{"backend:", {"backend", "", not_native, 8}}));

INSTANTIATE_TEST_SUITE_P(
    lists, pytorch_conf_errors,
    testing::Values(refused{"roundup_power2_divisions:0", {roundup, "0", not_parts, 25}},
                    refused{"roundup_power2_divisions:3", {roundup, "3", not_parts, 25}},
                    refused{"roundup_power2_divisions:4294967296", {roundup, "4294967296", not_parts, 25}},
                    refused{"roundup_power2_divisions:", {roundup, "", not_parts, 25}},
                    refused{"roundup_power2_divisions:[65:4]", {roundup, "65", not_size, 26}},
                    refused{"roundup_power2_divisions:[0:4]", {roundup, "0", not_size, 26}},
                    refused{"roundup_power2_divisions:[<:4]", {roundup, "<", not_size, 26}},
                    refused{"roundup_power2_divisions:[64:3]", {roundup, "3", not_parts_or_0, 29}},
                    refused{"roundup_power2_divisions:[64:]", {roundup, "]", not_parts_or_0, 29}},
                    refused{"roundup_power2_divisions:[64,8]", {roundup, ",", no_size_colon, 28}},
                    refused{"roundup_power2_divisions:[64", {roundup, "", no_size_colon, 28}},
                    refused{"roundup_power2_divisions:[64:8:128:2]", {roundup, ":", not_parted, 30}},
                    refused{"roundup_power2_divisions:[64:8", {roundup, "", not_parted, 30}},
                    refused{"roundup_power2_divisions:[64:8,", {roundup, "", not_size, 31}},
                    refused{"roundup_power2_divisions:[", {roundup, "", not_size, 26}}));

/// Whatever is parsed obeys its own rules: settings are in range, errors lie in the text.
void expect_sound(std::string_view text) {
  const auto parsed = tessera::config::parse<tessera::config::pytorch>(text);
  if (const auto* why = std::get_if<setting_error>(&parsed)) {
    ASSERT_LE(why->at, text.size()) << text;
    ASSERT_FALSE(why->rule.empty()) << text;
    const std::string_view named = why->value.empty() ? why->key : why->value;
    ASSERT_NE(text.find(named), std::string_view::npos) << text;
    return;
  }
  const auto& got = std::get<pytorch_settings>(parsed);
  ASSERT_GT(got.max_split_size, 20_MiB) << text;
  ASSERT_GE(got.max_non_split_rounding, 20_MiB) << text;
  ASSERT_LT(got.garbage_collection_threshold.billionths, 1'000'000'000u) << text;
  for (std::uint32_t parts : got.roundup.in_slot) ASSERT_EQ(parts & (parts - 1u), 0u) << text;
}

constexpr std::string_view whole =
    "max_split_size_mb:64,max_non_split_rounding_mb:21,garbage_collection_threshold:0.6,"
    "roundup_power2_divisions:[64:8,128:2,>:1],expandable_segments:False,backend:native,";

TEST(pytorch_conf, any_beginning_is_answered) {
  for (std::size_t n = 0; n <= whole.size(); ++n) expect_sound(whole.substr(0, n));
  EXPECT_TRUE(is_legal(whole));
}

TEST(pytorch_conf, any_mutation_is_answered) {
  constexpr std::string_view letters = std::string_view(",:[]> .0129-aT\0\xff", 16);
  std::mt19937 random(7);
  for (int i = 0; i < 50'000; ++i) {
    std::string text(whole);
    for (auto changes = random() % 4 + 1; changes > 0; --changes) {
      const std::size_t at = random() % text.size();
      const char c = letters[random() % letters.size()];
      switch (random() % 3) {
        case 0: text[at] = c; break;
        case 1: text.insert(at, 1, c); break;
        default: text.erase(at, random() % 8 + 1);
      }
      if (text.empty()) text = c;
    }
    expect_sound(text);
    if (HasFatalFailure()) return;
  }
}

}  // namespace
