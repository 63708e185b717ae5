// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <cstddef>
#include <thread>

#include <gtest/gtest.h>

#include <tessera/provider/limiting.hpp>

namespace {

using namespace tessera;

const auto given = [] { return true; };
const auto refused = [] { return false; };

TEST(byte_budget, allows_exactly_its_bytes) {
  detail::byte_budget budget(100);
  EXPECT_TRUE(budget.take(60, 0, given));
  EXPECT_FALSE(budget.would_exceed(40));
  EXPECT_TRUE(budget.would_exceed(41));
  EXPECT_FALSE(budget.take(41, 0, given));
  EXPECT_TRUE(budget.take(40, 0, given));
  EXPECT_FALSE(budget.take(1, 0, given));
  budget.give_back(60);
  EXPECT_EQ(budget.taken(), 40u);
  EXPECT_TRUE(budget.take(100, 99, given));
  EXPECT_FALSE(budget.take(100, 99, given));
  EXPECT_TRUE(budget.would_exceed(unlimited));
}

TEST(byte_budget, reports_the_rest) {
  detail::byte_budget budget(100);
  EXPECT_EQ(budget.left(), 100u);
  EXPECT_TRUE(budget.take(60, 0, [] { return true; }));
  EXPECT_EQ(budget.left(), 40u);
  budget.set_limit(50);
  EXPECT_EQ(budget.left(), 0u);
  budget.give_back(60);
  EXPECT_EQ(budget.left(), 50u);
}

TEST(byte_budget, does_not_count_failed_calls) {
  detail::byte_budget budget(100);
  EXPECT_FALSE(budget.take(100, 0, refused));
  EXPECT_EQ(budget.taken(), 0u);
  EXPECT_TRUE(budget.take(100, 0, given));
}

TEST(byte_budget, records_its_peak) {
  detail::byte_budget budget(100);
  EXPECT_TRUE(budget.take(60, 0, given));
  budget.give_back(60);
  EXPECT_TRUE(budget.take(40, 0, given));
  EXPECT_FALSE(budget.take(50, 0, refused));
  EXPECT_EQ(budget.peak(), 60u);
  budget.reset_peak();
  EXPECT_EQ(budget.peak(), 40u);
  EXPECT_TRUE(budget.take(30, 0, given));
  EXPECT_EQ(budget.peak(), 70u);
}
TEST(byte_budget, a_release_during_a_call_counts_into_the_peak) {
  detail::byte_budget budget(100);
  EXPECT_TRUE(budget.take(60, 0, given));
  EXPECT_TRUE(budget.take(40, 0, [&budget] {
    budget.give_back(60);
    return true;
  }));
  EXPECT_EQ(budget.taken(), 40u);
  EXPECT_EQ(budget.peak(), 100u);
}

TEST(byte_budget, a_lower_limit_releases_nothing) {
  detail::byte_budget budget(100);
  EXPECT_TRUE(budget.take(80, 0, given));
  budget.set_limit(50);
  EXPECT_EQ(budget.limit(), 50u);
  EXPECT_TRUE(budget.would_exceed(0));
  EXPECT_FALSE(budget.take(1, 0, given));
  budget.give_back(80);
  EXPECT_TRUE(budget.take(50, 0, given));
}

/// Asks for 60 of 100 and meanwhile, in another thread, for `other`, which comes before the first call has ended or after.
///   Returns:  whether the other one got it
bool got_beside_60(detail::byte_budget& budget, std::size_t other, bool first_is_given) {
  std::thread second;
  bool got = false;
  EXPECT_EQ(budget.take(60, 0,
                        [&] {
                          std::atomic<bool> is_there{false};
                          second = std::thread([&] {
                            is_there = true;
                            got = budget.take(other, 0, given);
                          });
                          while (!is_there) std::this_thread::yield();
                          for (int i = 0; i < 100; ++i) std::this_thread::yield();
                          return first_is_given;
                        }),
            first_is_given);
  second.join();
  return got;
}

TEST(byte_budget, a_blocked_request_waits_for_calls_that_may_fail) {
  for (int round = 0; round < 50; ++round) {
    detail::byte_budget budget(100);
    EXPECT_TRUE(got_beside_60(budget, 50, false));
    EXPECT_EQ(budget.taken(), 50u);
  }
}

TEST(byte_budget, calls_that_overlap_do_not_pass_it_together) {
  for (int round = 0; round < 50; ++round) {
    detail::byte_budget budget(100);
    EXPECT_FALSE(got_beside_60(budget, 50, true));
    EXPECT_EQ(budget.taken(), 60u);
  }
}

TEST(byte_budget, no_request_waits_without_need) {
  detail::byte_budget budget(100);
  EXPECT_TRUE(budget.take(60, 0, [&] {
    EXPECT_FALSE(budget.would_exceed(100));
    EXPECT_TRUE(budget.take(40, 0, given));   // fits in addition
    EXPECT_FALSE(budget.take(61, 0, given));  // does not fit without it either
    return true;
  }));
  EXPECT_EQ(budget.taken(), 100u);
}

}  // namespace
