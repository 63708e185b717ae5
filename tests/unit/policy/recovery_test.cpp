// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/core/bytes.hpp>
#include <tessera/policy/pools.hpp>
#include <tessera/policy/recovery.hpp>

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
  EXPECT_EQ(of(with_fail_fast<recover_by_releasing_oversize, true>{}, failure_reason::by_device),
            (steps{fitting, all}));
  EXPECT_EQ(of(with_fail_fast<recover_by_releasing_oversize, true>{}, failure_reason::by_limit), steps{});
}

TEST(pools_policy, counts_the_boundary_as_small) {
  constexpr pool_small_and_large<1_MiB> pools{};
  EXPECT_EQ(pools.select(512), 0u);
  EXPECT_EQ(pools.select(1_MiB), 0u);
  EXPECT_EQ(pools.select(1_MiB + 64), 1u);
  EXPECT_EQ((pool_small_and_large<std::size_t{0}>{}.select(64)), 1u);
  EXPECT_EQ(pool_together::select(1_GiB), 0u);
}

}  // namespace
