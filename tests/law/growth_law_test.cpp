// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include <tessera/law/growth_bound.hpp>
#include <tessera/policy/chunks.hpp>
#include <tessera/policy/evict_after.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/recipe/torch_npu.hpp>
#include <tessera/tessera.hpp>

#include "../conformance/shipped.hpp"

namespace {

using namespace tessera;

// Free memory that serves whatever fits is cheap to recognize, also for the compiler.
static_assert(law::growth_is_bounded<recipe::pytorch<>>() && law::growth_is_bounded<recipe::stitched>());
static_assert(law::growth_is_bounded<recipe::pytorch<"expandable_segments:True">>());

/// Runs the program of a witness on a new allocator. Returns what it reserves.
template <typename Recipe>
std::size_t reserved_by(law::growth_witness program, std::size_t cycles,
                        const recipe::policies<Recipe>& p = {}) {
  using endless = law::detail::endless_recipe<Recipe>;
  caching_allocator<endless, law::detail::endless_device> allocator({}, law::detail::without_end(p));
  program.peak_live = 0;
  (void)law::detail::run_cycles(allocator, program, cycles);
  return program.reserved;
}

/// Requires that the law finds a program, and that the program does to an allocator what the witness says.
template <typename Recipe>
void expect_unbounded(double ratio) {
  const law::growth_witness found = law::growth_is_bounded<Recipe>();
  ASSERT_FALSE(found);
  EXPECT_GT(static_cast<double>(found.reserved), ratio * static_cast<double>(found.peak_live));
  EXPECT_EQ(reserved_by<Recipe>(found, found.cycles), found.reserved);
  EXPECT_GT(reserved_by<Recipe>(found, 3 * found.cycles), 2 * found.reserved);
}
/// Requires that the law finds no program, and that the search finds none either if free memory serves whatever fits.
template <typename Recipe>
void expect_bounded() {
  EXPECT_STREQ(law::growth_is_bounded<Recipe>().text().c_str(), "");
  EXPECT_STREQ(law::detail::find_growth_without_end<Recipe>({}).text().c_str(), "");
}
/// Requires that an allocator over a simulated device is found to do what the law says of its recipe.
template <typename Recipe>
void expect_the_same_of_an_allocator() {
  provider::simulated_npu device({.capacity = std::size_t{1} << 43});
  caching_allocator<Recipe, provider::simulated_npu> allocator(std::move(device));
  const law::growth_witness found = law::growth_is_bounded(allocator);
  EXPECT_FALSE(found);
  EXPECT_STREQ(found.text().c_str(), law::growth_is_bounded<Recipe>().text().c_str());
  EXPECT_EQ(allocator.current_usage().reserved, 0u);
}

using expandable = recipe::pytorch_family::expandable;

TEST(growth_is_bounded, holds_for_every_shipped_recipe_with_its_initial_numbers) {
  int recipes = 0;
  conformance::for_each_shipped([&]<typename Recipe>(conformance::named<Recipe>) {
    SCOPED_TRACE(recipes++);
    expect_bounded<Recipe>();
  });
  EXPECT_GT(recipes, 0);
}

TEST(growth_is_bounded, finds_a_split_limit_with_expandable_segments) {
  expect_unbounded<recipe::pytorch<"max_split_size_mb:128,expandable_segments:True">>(40);
  expect_unbounded<recipe::pytorch<"max_split_size_mb:20,expandable_segments:True">>(40);
  expect_unbounded<recipe::pytorch<"max_split_size_mb:1000,expandable_segments:True">>(40);
  expect_unbounded<recipe::pytorch_2_14<"max_split_size_mb:64,expandable_segments:True">>(40);
}

TEST(growth_is_bounded, says_the_same_of_an_allocator_of_the_program) {
  expect_the_same_of_an_allocator<recipe::pytorch<"max_split_size_mb:128,expandable_segments:True">>();
  expect_the_same_of_an_allocator<recipe::pytorch<"max_split_size_mb:128">>();
  expect_the_same_of_an_allocator<recipe::with<recipe::stitched, policy::split_never<>>>();
}

// A request just below the limit gets a segment of the limit. That is oversize, and does not serve it again.
TEST(growth_is_bounded, finds_requests_just_below_a_split_limit) {
  expect_unbounded<recipe::pytorch<"max_split_size_mb:128">>(40);
  expect_unbounded<recipe::pytorch<"max_split_size_mb:129,garbage_collection_threshold:0.8">>(40);
  expect_unbounded<recipe::torch_npu<"max_split_size_mb:64">>(40);
  expect_bounded<recipe::pytorch<"max_split_size_mb:128,roundup_power2_divisions:4">>();
  expect_bounded<recipe::with<recipe::pytorch<"max_split_size_mb:128">, policy::grow_exactly<>>>();
  expect_bounded<recipe::with<recipe::pytorch<"max_split_size_mb:128">, policy::round_to_multiple<2_MiB>>>();
}

/// Refuses blocks of more than twice the size of the request.
struct serves_about_its_size : policy::split_if_remainder_at_least<512> {
  [[nodiscard]] static constexpr bool may_serve(std::size_t wanted, std::size_t block) noexcept {
    return block <= 2 * wanted;
  }
  bool operator==(const serves_about_its_size&) const = default;
};
TEST(growth_is_bounded, finds_other_policies_that_refuse_what_fits) {
  expect_unbounded<recipe::with<recipe::pytorch<>, serves_about_its_size>>(40);
  expect_unbounded<recipe::with<expandable, serves_about_its_size>>(40);
  expect_unbounded<recipe::with<expandable, policy::split_never<>>>(40);
  expect_unbounded<recipe::with<expandable, policy::split_never<policy::block_fit::exact>>>(40);
  expect_unbounded<recipe::with<recipe::pytorch<>, policy::split_below<128_MiB, 1_MiB>>>(40);
  expect_bounded<recipe::with<recipe::pytorch<>, policy::split_never<>>>();
}

TEST(growth_is_bounded, knows_that_eviction_or_moving_memory_bounds_it) {
  using below = policy::split_below<64_MiB, 20_MiB, limit_of_pools, 0>;
  expect_bounded<recipe::with<expandable, below, policy::evict_at_free<>>>();
  expect_bounded<recipe::with<recipe::pytorch<>, policy::split_below<64_MiB>, policy::evict_at_free<>>>();
  expect_bounded<
      recipe::with<recipe::pytorch<>, policy::split_below<64_MiB>, policy::evict_idle_segments<true>>>();
  expect_unbounded<
      recipe::with<recipe::pytorch<>, policy::split_below<64_MiB>, policy::evict_at_free<64_MiB>>>(40);
  expect_bounded<recipe::with<recipe::stitched, below>>();
  EXPECT_FALSE((law::growth_is_bounded<recipe::with<recipe::stitched, policy::split_never<>>>()));
}

/// A growth policy that the law cannot derive from.
struct own_segments final : policy::grow_by_segments<> {
  bool operator==(const own_segments&) const = default;
};

// Cycles that take no time reach no age of a clock, and a limit hides no growth below it.
TEST(growth_is_bounded, knows_that_neither_a_clock_nor_a_limit_bounds_it) {
  using grows = recipe::pytorch<"max_split_size_mb:128">;
  expect_unbounded<recipe::with<grows, policy::evict_after<>>>(40);
  expect_unbounded<recipe::with<grows, policy::grow_by_segments<2_MiB, 20_MiB, 10_MiB, memory_limit(1_GiB)>>>(
      40);
  expect_unbounded<recipe::with<grows, own_segments>>(40);
  recipe::policies<grows> p;
  p.growth.limit = 1_GiB;
  EXPECT_STREQ(law::growth_is_bounded(p).text().c_str(), law::growth_is_bounded<grows>().text().c_str());
  recipe::policies<recipe::with<grows, own_segments>> q;
  q.growth.limit = 1_GiB;
  EXPECT_STREQ(law::growth_is_bounded(q).text().c_str(), law::growth_is_bounded<grows>().text().c_str());
}

TEST(growth_is_bounded, asks_the_numbers_of_run_time) {
  recipe::policies<expandable> p;
  EXPECT_TRUE(law::growth_is_bounded(p));
  p.split.max = 96_MiB;
  const law::growth_witness found = law::growth_is_bounded(p);
  EXPECT_FALSE(found);
  EXPECT_EQ(reserved_by<expandable>(found, found.cycles, p), found.reserved);
}

// 91 and 45.5 MiB, freed in each cycle, with 2 MiB that stay for the next one: PyTorch issue 193400.
TEST(growth_is_bounded, reserves_as_reported_with_the_program_of_the_report) {
  const law::growth_witness program{.requests = {91_MiB, 45_MiB + 512_KiB}, .kept = 2_MiB};
  using both = recipe::pytorch<"max_split_size_mb:128,expandable_segments:True">;
  EXPECT_EQ(reserved_by<both>(program, 100) >> 20, 13'860u);
  EXPECT_LT(reserved_by<expandable>(program, 100), 200_MiB);
}

}  // namespace
