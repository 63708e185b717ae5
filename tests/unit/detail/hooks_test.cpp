// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include <gtest/gtest.h>

#include <tessera/detail/hooks.hpp>

namespace {

using tessera::detail::hooks;

std::vector<int> called;
hooks* running = nullptr;

template <int Number, bool Freed>
bool note(void* context) noexcept {
  called.push_back(context == &called ? Number : -1);
  return Freed;
}

TEST(hooks, are_all_called_in_the_order_of_asking) {
  called.clear();
  hooks asked;
  EXPECT_FALSE(asked.run());
  ASSERT_TRUE(asked.add(note<1, false>, &called));
  EXPECT_FALSE(asked.run());
  ASSERT_TRUE(asked.add(note<2, true>, &called));
  ASSERT_TRUE(asked.add(note<3, false>, &called));
  EXPECT_TRUE(asked.run());
  EXPECT_EQ(called, (std::vector{1, 1, 2, 3}));
}

TEST(hooks, are_not_called_by_themselves) {
  hooks asked;
  running = &asked;
  called.clear();
  const auto again = [](void*) noexcept { return called.push_back(4), running->run(); };
  ASSERT_TRUE(asked.add(again, nullptr));
  EXPECT_FALSE(asked.run());
  EXPECT_FALSE(asked.run());
  EXPECT_EQ(called, (std::vector{4, 4}));
}

}  // namespace
