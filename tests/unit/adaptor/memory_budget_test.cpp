// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <thread>

#include <gtest/gtest.h>

#include <tessera/adaptor/memory_budget.hpp>

namespace {

using namespace tessera;

const auto given = [] { return true; };
const auto refused = [] { return false; };

TEST(memory_budget, allows_just_what_it_has) {
  memory_budget budget(100);
  EXPECT_TRUE(budget.take(60, 0, given));
  EXPECT_FALSE(budget.is_passed_by(40));
  EXPECT_TRUE(budget.is_passed_by(41));
  EXPECT_FALSE(budget.take(41, 0, given));
  EXPECT_TRUE(budget.take(40, 0, given));
  EXPECT_FALSE(budget.take(1, 0, given));
  budget.give_back(60);
  EXPECT_EQ(budget.taken(), 40u);
  EXPECT_TRUE(budget.take(100, 99, given));
  EXPECT_FALSE(budget.take(100, 99, given));
  EXPECT_TRUE(budget.is_passed_by(unlimited));
}

TEST(memory_budget, does_not_count_what_was_not_given) {
  memory_budget budget(100);
  EXPECT_FALSE(budget.take(100, 0, refused));
  EXPECT_EQ(budget.taken(), 0u);
  EXPECT_TRUE(budget.take(100, 0, given));
}

TEST(memory_budget, a_lower_limit_takes_nothing_back) {
  memory_budget budget(100);
  EXPECT_TRUE(budget.take(80, 0, given));
  budget.set_limit(50);
  EXPECT_EQ(budget.limit(), 50u);
  EXPECT_TRUE(budget.is_passed_by(0));
  EXPECT_FALSE(budget.take(1, 0, given));
  budget.give_back(80);
  EXPECT_TRUE(budget.take(50, 0, given));
}

// Whether it comes before the first call has ended or after, it must get what the first one did not.
TEST(memory_budget, who_is_in_want_waits_for_calls_that_may_fail) {
  for (int round = 0; round < 50; ++round) {
    memory_budget budget(100);
    std::thread second;
    bool got = false;
    EXPECT_FALSE(budget.take(60, 0, [&] {
      std::atomic<bool> is_there{false};
      second = std::thread([&budget, &got, &is_there] {
        is_there = true;
        got = budget.take(50, 0, given);
      });
      while (!is_there) std::this_thread::yield();
      for (int i = 0; i < 100; ++i) std::this_thread::yield();
      return false;
    }));
    second.join();
    EXPECT_TRUE(got);
    EXPECT_EQ(budget.taken(), 50u);
  }
}

TEST(memory_budget, nobody_waits_where_it_does_not_matter) {
  memory_budget budget(100);
  EXPECT_TRUE(budget.take(60, 0, [&] {
    EXPECT_FALSE(budget.is_passed_by(100));
    EXPECT_TRUE(budget.take(40, 0, given));   // fits beside it
    EXPECT_FALSE(budget.take(61, 0, given));  // does not fit without it either
    return true;
  }));
  EXPECT_EQ(budget.taken(), 100u);
}

}  // namespace
