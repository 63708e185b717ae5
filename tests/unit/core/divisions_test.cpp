// SPDX-License-Identifier: Apache-2.0
#include <bit>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <random>

#include <gtest/gtest.h>

#include <tessera/core/bytes.hpp>

namespace {

using namespace tessera::literals;
using tessera::divisions;
using tessera::detail::next_division;

constexpr divisions numbered() {
  divisions table;
  for (std::uint32_t i = 0; i < divisions::slot_count; ++i) table.in_slot[i] = i;
  return table;
}

static_assert(numbered().of(0) == 0);
static_assert(numbered().of(1) == 0);
static_assert(numbered().of(2_MiB - 1) == 0);
static_assert(numbered().of(2_MiB) == 1);
static_assert(numbered().of(4_MiB - 1) == 1);
static_assert(numbered().of(64_MiB) == 6);
static_assert(numbered().of(16_GiB) == 14);
static_assert(numbered().of(32_GiB - 1) == 14);
static_assert(numbered().of(32_GiB) == 15);
static_assert(numbered().of(tessera::unlimited) == 15);

static_assert(divisions{}.of(64_MiB) == 0);
static_assert(divisions::all(4).of(1) == 4 && divisions::all(4).of(tessera::unlimited) == 4);
static_assert(divisions::all(0) == divisions{} && divisions::all(4) != divisions{});

template <divisions Table>
struct as_template_argument {
  static constexpr divisions table = Table;
};
static_assert(as_template_argument<numbered()>::table.of(64_MiB) == 6);

static_assert(next_division(1200, 4) == 1280);
static_assert(next_division(84_MiB, 4) == 96_MiB);
static_assert(next_division(84_MiB, 8) == 88_MiB);
static_assert(next_division(64_MiB, 8) == 64_MiB);
static_assert(next_division(64_MiB + 1, 8) == 72_MiB);
static_assert(next_division(513_MiB, 16) == 544_MiB);
static_assert(next_division(1, 1) == 1);
static_assert(next_division(3, 1) == 4);
static_assert(next_division(3, 2) == 3);
static_assert(next_division(std::size_t{1} << 63, 4) == std::size_t{1} << 63);
static_assert(next_division(tessera::max_request, 4) == std::size_t{1} << 60);

// Each slot contains exactly the sizes with one power of two as floor.
TEST(divisions, slots_meet_without_gap) {
  for (std::size_t slot = 1; slot < divisions::slot_count; ++slot) {
    const std::size_t first = std::size_t{1} << (20 + slot);
    EXPECT_EQ(numbered().of(first - 1), slot - 1);
    EXPECT_EQ(numbered().of(first), slot);
  }
}

// The definition: the smallest multiple of the step that covers n, found by search.
std::size_t searched(std::size_t n, std::size_t parts) {
  const std::size_t step = std::bit_floor(n) / parts;
  std::size_t at = std::bit_floor(n);
  while (at < n) at += step;
  return at;
}

TEST(next_division, is_the_least_step_that_covers) {
  for (std::size_t parts : {1u, 2u, 4u, 8u, 16u, 64u}) {
    for (std::size_t n = parts; n < 5000; ++n) ASSERT_EQ(next_division(n, parts), searched(n, parts)) << n;
  }
}

TEST(next_division, covers_is_monotonic_and_idempotent) {
  for (std::size_t parts : {1u, 2u, 4u, 8u, 16u, 64u}) {
    std::size_t before = 0;
    for (std::size_t n = parts; n < 200'000; ++n) {
      const std::size_t rounded = next_division(n, parts);
      ASSERT_GE(rounded, n);
      ASSERT_GE(rounded, before) << n;
      ASSERT_EQ(next_division(rounded, parts), rounded) << n;
      before = rounded;
    }
  }
}

TEST(next_division, holds_for_large_sizes) {
  std::mt19937_64 random(20240611);
  for (int i = 0; i < 200'000; ++i) {
    const std::size_t n = (random() >> (random() % 40 + 4)) | 4096;
    const std::size_t parts = std::size_t{1} << (random() % 12);
    const std::size_t rounded = next_division(n, parts);
    const std::size_t step = std::bit_floor(n) / parts;
    ASSERT_GE(rounded, n);
    ASSERT_LT(rounded - n, step);
    ASSERT_EQ(rounded % step, 0u);
    ASSERT_EQ(next_division(rounded, parts), rounded);
    ASSERT_GE(next_division(n + 1, parts), rounded);
  }
}

}  // namespace
