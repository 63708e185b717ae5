// SPDX-License-Identifier: Apache-2.0
// Policies that answer only at run time and break their laws then. The compiler rejects errors in constant
// expressions (tests/diagnostic/recipe_*.cpp).
#include <cstddef>

#include <gtest/gtest.h>

#include <tessera/concurrent/locked.hpp>
#include <tessera/concurrent/per_stream.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

namespace {

using namespace tessera;

template <typename Policy, typename Base = pytorch<>>
using pool_with = caching_allocator<with<Base, Policy>, simulated_device>;

/// Answers as the test says for sizes of at least 512 bytes, and correctly below.
template <std::size_t (*Answer)(std::size_t)>
struct rounds {
  [[nodiscard]] static std::size_t block_size(std::size_t n) noexcept { return n <= 512 ? 512 : Answer(n); }
  bool operator==(const rounds&) const = default;
};
std::size_t as_it_is(std::size_t n) { return n; }
std::size_t half(std::size_t n) { return align_up(n / 2, 512); }
std::size_t nothing(std::size_t) { return 0; }
std::size_t everything(std::size_t) { return unlimited / min_alignment * min_alignment; }
std::size_t next_512(std::size_t n) { return align_up(n, 512); }

constexpr const char* rounding_rule = "a block holds the request, and is a multiple of min_alignment";

/// Aborts when a request of 1000 bytes misses, and also when it could hit a free block.
template <typename Pool>
void expect_death_of_request(const char* words) {
  Pool pool;
  EXPECT_DEATH((void)pool.try_allocate(1000), words);
  pool.deallocate(pool.allocate(512));
  EXPECT_DEATH((void)pool.try_allocate(1000), words);
}

TEST(ask_policies_death, an_impossible_block_size_aborts) {
  expect_death_of_request<pool_with<rounds<as_it_is>>>(
      "Recipe::rounding: block_size\\(1000\\) is 1000; a block holds the request");
  expect_death_of_request<pool_with<rounds<half>>>("Recipe::rounding: block_size\\(1000\\) is 512; ");
  expect_death_of_request<pool_with<rounds<nothing>>>("Recipe::rounding: block_size\\(1000\\) is 0; ");
  expect_death_of_request<pool_with<rounds<everything>>>(rounding_rule);
  expect_death_of_request<pool_with<round_padded<64, rounds<as_it_is>>>>(rounding_rule);
  expect_death_of_request<locked<caching_allocator<with<pytorch<>, rounds<half>>, simulated_device>>>(
      rounding_rule);
  expect_death_of_request<per_stream<caching_allocator<with<pytorch<>, rounds<half>>, simulated_device>>>(
      rounding_rule);
  expect_death_of_request<pool_with<rounds<half>, stitched>>(rounding_rule);
  expect_death_of_request<pool_with<rounds<half>, pytorch_family::expandable>>(rounding_rule);
}

TEST(ask_policies, a_policy_that_answers_at_run_time_works) {
  pool_with<rounds<next_512>> pool;
  void* const p = pool.allocate(1000);
  EXPECT_EQ(pool.current_usage().allocated, 1024u);
  pool.deallocate(p);
  EXPECT_EQ(pool.audit(), nullptr);
}

/// A policy that needs a check at run time, with a base that does not.
struct derived : round_to_multiple<512> {
  [[nodiscard]] static std::size_t block_size(std::size_t n) noexcept { return n == 1000 ? 999 : 512; }
  bool operator==(const derived&) const = default;
};
TEST(ask_policies_death, a_policy_is_checked_even_if_its_base_is_lawful) {
  static_assert(detail::is_verified_rounding<round_to_multiple<512>> &&
                !detail::is_verified_rounding<derived>);
  expect_death_of_request<pool_with<derived>>("Recipe::rounding: block_size\\(1000\\) is 999; ");
}

struct pools_by_mib {
  static constexpr std::size_t count = 2;
  [[nodiscard]] static std::size_t select(std::size_t block) noexcept { return block >> 20; }
  bool operator==(const pools_by_mib&) const = default;
};
TEST(ask_policies_death, an_invalid_pool_aborts) {
  pool_with<pools_by_mib> pool;
  pool.deallocate(pool.allocate(1_MiB));
  EXPECT_DEATH((void)pool.try_allocate(2_MiB),
               "Recipe::pools: select\\(2097152\\) is 2; a pool's number is below count");
}

template <std::size_t Segment>
struct grows_to : grow_exactly<> {
  [[nodiscard]] static std::size_t segment_size(std::size_t, const usage&) noexcept { return Segment; }
  bool operator==(const grows_to&) const = default;
};
TEST(ask_policies_death, an_impossible_segment_aborts) {
  pool_with<grows_to<1_MiB>> small;
  small.deallocate(small.allocate(1_MiB));
  EXPECT_DEATH((void)small.try_allocate(2_MiB), "Recipe::growth: segment_size\\(2097152\\) is 1048576; ");
  pool_with<grows_to<unlimited>> large;
  EXPECT_DEATH((void)large.try_allocate(2_MiB),
               "a segment must hold the block it is taken for, and be smaller");
}

template <typename Base, std::size_t Page>
struct maps : Base {
  [[nodiscard]] static std::size_t mapping_unit(std::size_t) noexcept { return Page; }
  bool operator==(const maps&) const = default;
};
TEST(ask_policies_death, an_impossible_page_aborts) {
  pool_with<maps<grow_by_stitching<>, 0>> none;
  EXPECT_DEATH((void)none.try_allocate(2_MiB), "Recipe::growth: mapping_unit\\(2097152\\) is 0; ");
  pool_with<maps<grow_by_mapping<>, 100>> uneven;
  EXPECT_DEATH((void)uneven.try_allocate(2_MiB), "mapping_unit is a multiple of min_alignment");
}

template <std::size_t Count>
struct backs {
  static constexpr bool uses_page_kinds = false;
  [[nodiscard]] static page_order backing(std::size_t) noexcept { return {{}, Count}; }
  bool operator==(const backs&) const = default;
};
TEST(ask_policies_death, invalid_page_kinds_abort) {
  pool_with<backs<4>> many;
  EXPECT_DEATH((void)many.try_allocate(1000), "Recipe::pages: backing\\(\\) returns one to three kinds");
  pool_with<backs<0>> none;
  EXPECT_DEATH((void)none.try_allocate(1000), "Recipe::pages: backing\\(\\) returns one to three kinds");
}

struct five_steps {
  [[nodiscard]] static recovery_steps steps(failure_reason) noexcept { return {{}, 5}; }
  bool operator==(const five_steps&) const = default;
};
TEST(ask_policies_death, invalid_recovery_steps_abort) {
  pool_with<five_steps> pool;
  EXPECT_DEATH((void)pool.try_allocate(max_request),
               "Recipe::recovery: steps\\(\\) returns at most four steps");
}

/// Keeps an empty rest, rejects an exact fit, and places blocks at an end that does not exist.
struct splits_anything {
  [[nodiscard]] static bool may_serve(std::size_t wanted, std::size_t block) noexcept {
    return wanted < block;
  }
  [[nodiscard]] static bool should_split(std::size_t, std::size_t) noexcept { return true; }
  [[nodiscard]] static block_end allocated_end() noexcept { return block_end{7}; }
  [[nodiscard]] static std::size_t oversize_from() noexcept { return 0; }
  bool operator==(const splits_anything&) const = default;
};
TEST(ask_policies, a_split_without_sense_does_no_harm) {
  pool_with<splits_anything> pool;
  void* const whole = pool.allocate(20_MiB);
  void* const part = pool.allocate(3_MiB);
  pool.deallocate(whole);
  void* const other = pool.allocate(20_MiB);
  EXPECT_EQ(pool.audit(), nullptr);
  pool.deallocate(part);
  pool.deallocate(other);
  pool.trim();
  EXPECT_EQ(pool.audit(), nullptr);
  EXPECT_EQ(pool.current_usage().reserved, 0u);
}

// Paddle's first chunk is nearly all of the device: more than 2^63 bytes, if its capacity is unlimited.
TEST(ask_policies, a_share_of_a_device_without_bound_is_a_size) {
  caching_allocator<paddle_family::naive_best_fit, simulated_device> pool{
      simulated_device({.capacity = unlimited})};
  (void)pool.try_allocate(std::size_t{1'000'000'000'000'000});
  EXPECT_EQ(pool.audit(), nullptr);
}

}  // namespace
