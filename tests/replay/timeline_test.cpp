// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/core/types.hpp>
#include "tessera_replay/memory_map.hpp"

namespace {

using replay::timeline;
using tessera::usage;
using range = timeline::range;

usage reserving(std::size_t bytes) { return {.reserved = bytes}; }

TEST(timeline, keeps_each_event_while_there_is_room) {
  timeline over(4);
  EXPECT_EQ(over.events(), 0u);
  EXPECT_TRUE(over.buckets().empty());
  over.note({.requested = 1, .allocated = 2, .active = 5, .cached = 4, .reserved = 3, .unbacked = 6});
  over.note(reserving(7));
  ASSERT_EQ(over.buckets().size(), 2u);
  EXPECT_EQ(over.width(), 1u);
  EXPECT_EQ(over.buckets()[0], (timeline::bucket{{1, 1}, {2, 2}, {3, 3}, {4, 4}, {3, 3}, {6, 6}}));
  EXPECT_EQ(over.buckets()[1].reserved, (range{7, 7}));
}

TEST(timeline, joins_pairs_once_it_is_full) {
  timeline over(4);
  for (const std::size_t bytes : {5u, 1u, 2u, 3u, 9u}) over.note(reserving(bytes));
  EXPECT_EQ(over.width(), 2u);
  ASSERT_EQ(over.buckets().size(), 3u);
  EXPECT_EQ(over.buckets()[0].reserved, (range{1, 5}));
  EXPECT_EQ(over.buckets()[1].reserved, (range{2, 3}));
  EXPECT_EQ(over.buckets()[2].reserved, (range{9, 9}));
  over.note(reserving(4));
  EXPECT_EQ(over.buckets()[2].reserved, (range{4, 9}));
}

TEST(timeline, stores_the_first_event_at_peak_reserved) {
  timeline over(2);
  for (const std::size_t bytes : {5u, 8u, 2u, 8u, 1u})
    over.note({.allocated = bytes / 2, .active = bytes / 2, .reserved = bytes});
  EXPECT_EQ(over.worst_event(), 1u);
  EXPECT_EQ(over.worst().reserved, 8u);
  EXPECT_EQ(over.worst().allocated, 4u);
}

// Each bucket has the minimum and maximum of its events, whatever came before.
TEST(timeline, is_exact_for_any_number_of_events) {
  std::mt19937 random(7);
  for (const std::size_t max : {2u, 4u, 6u, 16u}) {
    timeline over(max);
    std::vector<std::size_t> all;
    for (std::size_t n = 1; n <= 300; ++n) {
      all.push_back(random() % 1000);
      over.note({.cached = 2 * all.back(), .reserved = all.back()});
      ASSERT_EQ(over.events(), n);
      ASSERT_LE(over.buckets().size(), max);
      ASSERT_EQ(over.buckets().size(), (n + over.width() - 1) / over.width());
      ASSERT_TRUE(n < max || 2 * over.buckets().size() >= max);
      for (std::size_t i = 0; i < over.buckets().size(); ++i) {
        const auto from = all.begin() + static_cast<std::ptrdiff_t>(i * over.width());
        const auto to = all.begin() + static_cast<std::ptrdiff_t>(std::min(n, (i + 1) * over.width()));
        const range expected{*std::min_element(from, to), *std::max_element(from, to)};
        ASSERT_EQ(over.buckets()[i].reserved, expected);
        ASSERT_EQ(over.buckets()[i].cached, (range{2 * expected.min, 2 * expected.max}));
      }
    }
  }
}

}  // namespace
