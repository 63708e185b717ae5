// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/core/bytes.hpp>

#include "../../by_day.hpp"
#include "random_programs.hpp"
#include "tessera_replay/planner/place.hpp"

namespace {

using namespace tessera;
using plan::lifetime;
using plan::place;
using plan::placement;
using plan::time_span;
using plan_tests::program;
using plan_tests::random_program;

bool are_live_together(const std::vector<time_span>& a, const std::vector<time_span>& b) {
  return std::any_of(a.begin(), a.end(), [&](const time_span& one) {
    return std::any_of(b.begin(), b.end(), [&](const time_span& other) {
      return one.lower < other.upper && other.lower < one.upper;
    });
  });
}

/// The least height of all placements: each order of the blocks, each block at its lowest free offset.
std::size_t least_height(const program& of) {
  std::vector<std::size_t> order(of.bytes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::size_t least = unlimited;
  do {
    std::vector<std::size_t> offsets(order.size());
    std::size_t height = 0;
    for (std::size_t i = 0; i < order.size(); ++i) {
      std::size_t offset = 0;
      for (std::size_t k = 0; k < i; ++k) {  // orders from the bottom up are among all orders
        if (are_live_together(of.spans[order[i]], of.spans[order[k]]))
          offset = std::max(offset, offsets[order[k]] + of.bytes[order[k]]);
      }
      offsets[order[i]] = offset;
      height = std::max(height, offset + of.bytes[order[i]]);
    }
    least = std::min(least, height);
  } while (std::next_permutation(order.begin(), order.end()));
  return least;
}

/// Cuts a rectangle of time and bytes into blocks. All of them fit into its height without a gap.
void cut(program& into, plan::detail::random_numbers& random, time_span span, std::size_t bytes, int depth) {
  const bool by_time = random.below(2) == 0;
  if (depth == 0 || span.upper - span.lower < 2 || bytes < 2) {
    into.add(bytes, {span});
  } else if (by_time) {
    const auto at = static_cast<std::uint32_t>(span.lower + 1 + random.below(span.upper - span.lower - 1));
    cut(into, random, {span.lower, at}, bytes, depth - 1);
    cut(into, random, {at, span.upper}, bytes, depth - 1);
  } else {
    const std::size_t part = 1 + random.below(bytes - 1);
    cut(into, random, span, part, depth - 1);
    cut(into, random, span, bytes - part, depth - 1);
  }
}

std::size_t live_peak(const program& of) {
  std::size_t peak = 0;
  for (const auto& at : of.spans) {
    for (const time_span& birth : at) {
      std::size_t live = 0;
      for (std::size_t i = 0; i < of.bytes.size(); ++i) {
        if (are_live_together(of.spans[i], {{birth.lower, birth.lower + 1}})) live += of.bytes[i];
      }
      peak = std::max(peak, live);
    }
  }
  return peak;
}

TEST(place, finds_the_optimum_of_small_programs_and_proves_it) {
  plan::detail::random_numbers random(1);
  for (int round = 0; round < by_day(100, 400); ++round) {
    const program all = random_program(random, 1 + random.below(6), 8, 10, round % 2 == 0 ? 1 : 3);
    const placement found = place(all.blocks(), {.effort = 1});
    ASSERT_TRUE(is_valid(all.blocks(), found)) << "round " << round;
    ASSERT_EQ(found.bytes, least_height(all)) << "round " << round;
    ASSERT_TRUE(found.is_optimal) << "round " << round;
    ASSERT_EQ(found.lower_bound, found.bytes) << "round " << round;
  }
}

TEST(place, is_valid_for_random_programs) {
  plan::detail::random_numbers random(2);
  for (int round = 0; round < by_day(100, 500); ++round) {
    const program all = random_program(random, random.below(25), 30, 100, 1 + random.below(4));
    const std::size_t alignment = std::size_t{1} << random.below(6);
    const placement found =
        place(all.blocks(), {.effort = 0.0005, .seed = random.next(), .alignment = alignment});
    ASSERT_TRUE(is_valid(all.blocks(), found, alignment)) << "round " << round;
    ASSERT_GE(found.bytes, found.lower_bound);
    ASSERT_GE(found.lower_bound, live_peak(all));
    ASSERT_EQ(found.is_optimal, found.bytes == found.lower_bound);
  }
}

TEST(place, fills_a_rectangle_that_was_cut_into_blocks) {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    plan::detail::random_numbers random(seed);
    program all;
    cut(all, random, {0, 1000}, 10'000, 6);
    const placement found = place(all.blocks(), {.effort = 20});
    EXPECT_TRUE(is_valid(all.blocks(), found));
    EXPECT_EQ(found.bytes, 10'000u) << "seed " << seed << ", " << all.bytes.size() << " blocks";
    EXPECT_TRUE(found.is_optimal);
  }
}

TEST(place, gives_the_same_offsets_for_the_same_seed) {
  plan::detail::random_numbers random(3);
  const program all = random_program(random, 300, 200, 1000, 2);
  const auto run = [&](std::uint64_t seed) { return place(all.blocks(), {.effort = 0.02, .seed = seed}); };
  EXPECT_EQ(run(7).offsets, run(7).offsets);
  EXPECT_EQ(run(7).bytes, run(7).bytes);
  EXPECT_TRUE(is_valid(all.blocks(), run(8)));
}

TEST(place, reuses_the_gap_between_the_spans_of_a_block) {
  program all;
  all.add(100, {{0, 2}, {4, 6}});
  all.add(100, {{2, 4}});
  const placement found = place(all.blocks());
  EXPECT_TRUE(is_valid(all.blocks(), found));
  EXPECT_EQ(found.bytes, 100u);
}

TEST(place, rounds_offsets_and_sizes_up_to_the_alignment) {
  program all;
  for (int i = 0; i < 3; ++i) all.add(513, {{0, 2}});
  const placement found = place(all.blocks(), {.alignment = 512});
  EXPECT_TRUE(is_valid(all.blocks(), found, 512));
  EXPECT_EQ(found.bytes, 3u * 1024);
  EXPECT_EQ(found.lower_bound, 3u * 1024);
  EXPECT_TRUE(found.is_optimal);
}

TEST(place, serves_programs_of_no_or_one_block_and_empty_blocks) {
  EXPECT_EQ(place({}).bytes, 0u);
  EXPECT_TRUE(place({}).is_optimal);
  program all;
  all.add(0, {{0, 9}});
  all.add(5, {});
  all.add(5, {{3, 3}});
  EXPECT_EQ(place(all.blocks()).bytes, 0u);
  all.add(7, {{0, std::numeric_limits<std::uint32_t>::max()}});
  const placement found = place(all.blocks());
  EXPECT_EQ(found.bytes, 7u);
  EXPECT_TRUE(found.is_optimal);
  EXPECT_EQ(found.offsets, std::vector<std::size_t>(4));
}

TEST(place, stops_at_enough_bytes_and_reports_progress) {
  plan::detail::random_numbers random(4);
  const program all = random_program(random, 200, 100, 1000, 1);
  std::vector<std::size_t> reported;
  plan::place_options options{.effort = 0.2};
  options.progress = [](void* state, std::size_t best, std::size_t) {
    static_cast<std::vector<std::size_t>*>(state)->push_back(best);
  };
  options.progress_state = &reported;
  const placement best = place(all.blocks(), options);
  ASSERT_FALSE(reported.empty());
  EXPECT_EQ(reported.back(), best.bytes);
  EXPECT_TRUE(std::is_sorted(reported.rbegin(), reported.rend()));
  reported.clear();
  options.enough = 2 * best.bytes;
  EXPECT_LE(place(all.blocks(), options).bytes, options.enough);
  EXPECT_EQ(reported.size(), 1u);
}

// As of the instances of MiniMalloc, whose capacity is known, but not their least height.
TEST(place, fits_a_capacity_above_the_lower_bound) {
  for (std::uint64_t seed = 1; seed <= by_day(2u, 6u); ++seed) {
    plan::detail::random_numbers random(seed);
    program all;
    cut(all, random, {0, 100'000}, 1'000'000, 8);
    program some;  // without a part of the blocks, the lower bound is below the capacity, and hides it
    for (std::size_t i = 0; i < all.bytes.size(); ++i) {
      if (random.below(12) != 0) some.add(all.bytes[i], all.spans[i]);
    }
    const placement found = place(some.blocks(), {.effort = 2, .enough = 1'000'000});
    EXPECT_TRUE(is_valid(some.blocks(), found));
    EXPECT_LE(found.bytes, 1'000'000u) << "seed " << seed << ", " << some.bytes.size() << " blocks";
  }
}

TEST(place, saturates_instead_of_overflowing) {
  program chain;  // one after the other
  for (std::uint32_t i = 0; i < 100; ++i) chain.add(max_request, {{i, i + 1}});
  const placement fits = place(chain.blocks(), {.effort = 0.1});
  EXPECT_EQ(fits.bytes, max_request);
  EXPECT_TRUE(fits.is_optimal);
  EXPECT_TRUE(is_valid(chain.blocks(), fits));

  program pile;  // all at once
  for (int i = 0; i < 100; ++i) pile.add(max_request, {{0, 1}});
  const placement overflows = place(pile.blocks(), {.effort = 0.1});
  EXPECT_EQ(overflows.bytes, unlimited);
  EXPECT_EQ(overflows.lower_bound, unlimited);
  EXPECT_FALSE(is_valid(pile.blocks(), overflows));

  program mixed;
  for (int i = 0; i < 8; ++i) mixed.add(max_request, {{0, 2}});
  for (int i = 0; i < 8; ++i) mixed.add(unlimited / 32, {{1, 3}});
  const placement large = place(mixed.blocks(), {.effort = 0.1, .alignment = 64});
  EXPECT_TRUE(is_valid(mixed.blocks(), large, 64));
  EXPECT_GE(large.bytes, std::size_t{12} << 59);
}

TEST(place, serves_many_blocks_soon) {
  constexpr std::uint32_t count = 20'000;
  program pile;
  program chain;
  program wild;
  plan::detail::random_numbers random(5);
  for (std::uint32_t i = 0; i < count; ++i) {
    pile.add(1 + i % 1000, {{0, 1}});
    chain.add(1 + i % 1000, {{i, i + 1}});
    const auto from = static_cast<std::uint32_t>(random.below(count));
    wild.add(1 + random.below(100'000), {{from, static_cast<std::uint32_t>(from + 1 + random.below(count))}});
  }
  for (const program* all : {&pile, &chain}) {
    const placement found = place(all->blocks(), {.effort = 0.1});
    EXPECT_TRUE(is_valid(all->blocks(), found));
    EXPECT_TRUE(found.is_optimal);
  }
  EXPECT_TRUE(is_valid(wild.blocks(), place(wild.blocks(), {.effort = 0})));
}

TEST(place, notices_invalid_placements) {
  program all;
  all.add(10, {{0, 2}});
  all.add(10, {{1, 3}});
  placement found = place(all.blocks());
  EXPECT_TRUE(is_valid(all.blocks(), found));
  EXPECT_FALSE(is_valid(all.blocks(), found, 64));
  found.offsets = {0, 9};
  found.bytes = 19;
  EXPECT_FALSE(is_valid(all.blocks(), found));
  found.offsets = {0, 10};
  EXPECT_FALSE(is_valid(all.blocks(), found));
  found.bytes = 20;
  EXPECT_TRUE(is_valid(all.blocks(), found));
  found.offsets = {0};
  EXPECT_FALSE(is_valid(all.blocks(), found));
}

}  // namespace
