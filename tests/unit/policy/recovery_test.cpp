// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/core/bytes.hpp>
#include <tessera/extension/private_pools.hpp>
#include <tessera/extension/quotas.hpp>
#include <tessera/policy/pools.hpp>
#include <tessera/policy/recovery.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

#include "extensions.hpp"

namespace {

using namespace tessera;
using steps = std::vector<recovery_steps::step>;

template <typename Recovery>
steps of(const Recovery& recovery, failure_reason why) {
  const recovery_steps tried = recovery.steps(why);
  return {tried.begin(), tried.end()};
}

TEST(recovery_policy, names_the_steps_in_order) {
  constexpr auto fitting = recovery_steps::step::release_oversize, all = recovery_steps::step::release_cached,
                 exactly = recovery_steps::step::retry_exact_size;
  for (const failure_reason why : {failure_reason::by_device, failure_reason::by_limit}) {
    EXPECT_EQ(of(recover_never{}, why), steps{});
    EXPECT_EQ(of(recover_by_emptying_cache<>{}, why), steps{all});
    EXPECT_EQ(of(recover_by_emptying_cache<tunable(false)>{}, why), steps{all});
    EXPECT_EQ(of(recover_by_emptying_cache<true>{}, why), (steps{all, exactly}));
    EXPECT_EQ(of(recover_by_releasing_oversize{}, why), (steps{fitting, all}));
  }
  EXPECT_EQ(of(fail_fast<recover_by_releasing_oversize, true>{}, failure_reason::by_device),
            (steps{fitting, all}));
  EXPECT_EQ(of(fail_fast<recover_by_releasing_oversize, true>{}, failure_reason::by_limit), steps{});
}
TEST(fail_fast, counts_a_share_of_the_device_as_its_capacity) {
  using half = fail_fast<recover_never, true, failure_reason::by_capacity, percent(50)>;
  EXPECT_EQ(half{}.usable(80_GiB), 40_GiB);
  EXPECT_EQ((fail_fast<recover_never>{}.usable(80_GiB)), 80_GiB);
  pytorch_2_14_family::native::recovery chosen;
  chosen.share = percent(10);
  EXPECT_EQ(chosen.usable(80_GiB), 8_GiB);
  EXPECT_EQ(of(chosen, failure_reason::by_capacity).size(), 2u);
  chosen.fails_fast = true;
  EXPECT_EQ(of(chosen, failure_reason::by_capacity), steps{});
}

TEST(last_search, adds_a_search_unless_the_request_must_fail_at_once) {
  constexpr auto fitting = recovery_steps::step::release_oversize, all = recovery_steps::step::release_cached,
                 exactly = recovery_steps::step::retry_exact_size,
                 search = recovery_steps::step::search_again;
  constexpr auto by_device = failure_reason::by_device, by_limit = failure_reason::by_limit;
  EXPECT_EQ(of(last_search<recover_never>{}, by_device), steps{search});
  EXPECT_EQ(of(last_search<recover_by_emptying_cache<true>>{}, by_device), (steps{all, exactly, search}));
  using torch = last_search<fail_fast<recover_by_releasing_oversize>>;
  torch recovery;
  EXPECT_EQ(of(recovery, by_limit), (steps{fitting, all, search}));
  recovery.fails_fast = true;
  EXPECT_EQ(of(recovery, by_limit), steps{});
  EXPECT_EQ(of(recovery, by_device), (steps{fitting, all, search}));
  EXPECT_EQ(of(fail_fast<last_search<recover_never>, true>{}, by_limit), steps{});
  EXPECT_TRUE((last_search<pytorch_2_14_family::native::recovery>::checks_capacity));
}

struct recovers_in_four_steps {
  [[nodiscard]] static constexpr recovery_steps steps(failure_reason) noexcept {
    using enum recovery_steps::step;
    return {{release_oversize, release_cached, retry_exact_size, release_cached}, 4};
  }
  bool operator==(const recovers_in_four_steps&) const = default;
};
TEST(last_search_death, has_no_room_after_four_steps) {
  EXPECT_DEATH((void)last_search<recovers_in_four_steps>{}.steps(failure_reason::by_device).end(),
               "steps\\(\\) returns at most four steps");
}

/// A full device of 40 MiB, on which stream 1 still uses a freed block of 8 MiB beside a live one.
template <typename Recipe>
struct full_device {
  caching_allocator<Recipe, simulated_device, extension::private_pools, extension::quotas> pool{
      simulated_device{simulated_device::options{.capacity = 40_MiB, .granularity = 2_MiB}}};
  void* const pending = pool.allocate(8_MiB);
  void* const beside = pool.allocate(8_MiB);
  void* const rest = pool.allocate(20_MiB);
  full_device() {
    EXPECT_TRUE(pool.record_stream(pending, stream_id{1}));
    pool.provider().submit(stream_id{1}, 1'000'000);
    pool.deallocate(pending);
    EXPECT_EQ(pool.current_usage().pending(), 8_MiB);
  }
};

TEST(last_search, serves_the_request_that_pytorch_refuses_once) {
  full_device<pytorch<>> as_pytorch;
  EXPECT_EQ(as_pytorch.pool.try_allocate(8_MiB), nullptr);
  EXPECT_EQ(as_pytorch.pool.try_allocate(8_MiB), as_pytorch.pending);
  full_device<with<pytorch<>, last_search<pytorch<>::recovery>>> patient;
  EXPECT_EQ(patient.pool.try_allocate(8_MiB), patient.pending);
  EXPECT_EQ(patient.pool.try_allocate(8_MiB), nullptr);
  EXPECT_EQ(patient.pool.audit(), nullptr);
  full_device<with<pytorch<>, last_search<recover_never>>> without_steps;
  EXPECT_EQ(without_steps.pool.try_allocate(8_MiB), without_steps.pending);
  using expandable = pytorch_family::expandable;
  full_device<expandable> mapped;
  EXPECT_EQ(mapped.pool.try_allocate(8_MiB), nullptr);
  full_device<with<expandable, last_search<expandable::recovery>>> searched;
  EXPECT_EQ(searched.pool.try_allocate(8_MiB), searched.pending);
}

TEST(last_search, keeps_a_search_if_shares_add_a_step) {
  using tenants = with<pytorch<>, last_search<recover_never>>;
  full_device<tenants> shared;
  ASSERT_TRUE(quotas_of(shared.pool).set({}, {.guaranteed = 1_MiB}));
  EXPECT_EQ(shared.pool.try_allocate(8_MiB), shared.pending);
}

TEST(pools_policy, counts_the_boundary_as_small) {
  constexpr pool_small_and_large<1_MiB> pools{};
  EXPECT_EQ(pools.select(512), 0u);
  EXPECT_EQ(pools.select(1_MiB), 0u);
  EXPECT_EQ(pools.select(1_MiB + 64), 1u);
  EXPECT_EQ((pool_small_and_large<std::size_t{0}>{}.select(64)), 1u);
  EXPECT_EQ(pool_together::select(1_GiB), 0u);
}

// The pools policy owns the limit of small blocks: split and growth learn it.
TEST(pools_policy, tells_growth_which_blocks_are_small) {
  caching_allocator<with<pytorch<>, pool_small_and_large<2_MiB>>, simulated_device, extension::private_pools,
                    extension::quotas>
      higher;
  (void)higher.allocate(1_MiB + 512_KiB);  // small: a segment with room for two of the limit
  EXPECT_EQ(higher.current_usage().reserved, 4_MiB);
  caching_allocator<with<pytorch<>, pool_small_and_large<256_KiB>>, simulated_device,
                    extension::private_pools, extension::quotas>
      lower;
  (void)lower.allocate(256_KiB);
  EXPECT_EQ(lower.current_usage().reserved, 2_MiB);
  (void)lower.allocate(768_KiB);  // large
  EXPECT_EQ(lower.current_usage().reserved, 22_MiB);
  caching_allocator<with<pytorch_family::expandable, pool_small_and_large<4_MiB>>, simulated_device,
                    extension::private_pools, extension::quotas>
      mapped;
  (void)mapped.allocate(3_MiB);  // two units of a small block, not one of a large block
  EXPECT_EQ(mapped.current_usage().reserved, 4_MiB);
  caching_allocator<with<stitched, pool_small_and_large<1_MiB>>, simulated_device, extension::private_pools,
                    extension::quotas>
      dense;
  EXPECT_EQ(detail::min_chunk(dense.policies(), 1_MiB), 0u);
  EXPECT_EQ(detail::min_chunk(dense.policies(), 2_MiB), 16_MiB);
  EXPECT_EQ(detail::min_chunk(policies<stitched>{}, 1_MiB), 16_MiB);
}

TEST(pools_policy, tells_split_which_blocks_are_small) {
  caching_allocator<with<pytorch<>, pool_small_and_large<2_MiB>>, simulated_device, extension::private_pools,
                    extension::quotas>
      higher;
  void* const low = higher.allocate(1_MiB + 512_KiB);
  void* const high = higher.allocate(2_MiB);
  higher.deallocate(high);
  (void)higher.allocate(1_MiB + 512_KiB);  // a small block leaves 1 MiB to others, and wastes nothing
  (void)higher.allocate(1_MiB);
  EXPECT_EQ(higher.current_usage().allocated, 4_MiB);
  EXPECT_EQ(higher.current_usage().reserved, 4_MiB);
  higher.deallocate(low);
  const policies<with<pytorch<>, pool_small_and_large<256_KiB>>> lower;
  EXPECT_TRUE(detail::should_split(lower, 768_KiB, 1_MiB + 512));    // more than the limit remains
  EXPECT_FALSE(detail::should_split(lower, 768_KiB, 1_MiB));         // the limit
  EXPECT_TRUE(detail::should_split(lower, 256_KiB, 256_KiB + 512));  // small
  EXPECT_FALSE(detail::should_split(policies<pytorch<>>{}, 1_MiB + 512, 2_MiB + 512));
}

TEST(pools_policy, tells_the_limit_that_is_set_at_run_time) {
  caching_allocator<paddle<>, simulated_device, extension::private_pools, extension::quotas> chunks;
  chunks.policies().growth.small_chunk = 2_MiB;
  chunks.policies().growth.large = 8_MiB;
  (void)chunks.allocate(1_MiB);
  EXPECT_EQ(chunks.current_usage().reserved, 8_MiB);
  chunks.policies().pools.boundary = 1_MiB;
  (void)chunks.allocate(1_MiB);
  EXPECT_EQ(chunks.current_usage().reserved, 10_MiB);
}

/// A policy of a user that does not ask, and one that does.
struct grow_to_eight : grow_exactly<> {
  [[nodiscard]] static constexpr std::size_t segment_size(std::size_t block, const usage&) noexcept {
    return align_up(block, 8_MiB);
  }
  bool operator==(const grow_to_eight&) const = default;
};
struct grow_small_to_eight : grow_exactly<> {
  [[nodiscard]] static constexpr std::size_t segment_size(std::size_t block, const usage&,
                                                          pool_traits in = {}) noexcept {
    return block <= in.small_limit_or(0) ? align_up(block, 8_MiB) : align_up(block, 2_MiB);
  }
  bool operator==(const grow_small_to_eight&) const = default;
};
TEST(pools_policy, tells_policies_of_users_that_ask) {
  caching_allocator<with<pytorch<>, grow_to_eight>, simulated_device, extension::private_pools,
                    extension::quotas>
      plain;
  (void)plain.allocate(2_MiB);
  EXPECT_EQ(plain.current_usage().reserved, 8_MiB);
  caching_allocator<with<pytorch<>, grow_small_to_eight>, simulated_device, extension::private_pools,
                    extension::quotas>
      asking;
  (void)asking.allocate(2_MiB);
  EXPECT_EQ(asking.current_usage().reserved, 2_MiB);
  (void)asking.allocate(1_MiB);
  EXPECT_EQ(asking.current_usage().reserved, 10_MiB);
  caching_allocator<with<pytorch<>, grow_small_to_eight, pool_together>, simulated_device,
                    extension::private_pools, extension::quotas>
      together;
  (void)together.allocate(1_MiB);
  EXPECT_EQ(together.current_usage().reserved, 2_MiB);
}

}  // namespace
