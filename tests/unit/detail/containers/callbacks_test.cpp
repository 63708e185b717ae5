// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include <gtest/gtest.h>

#include <tessera/detail/containers/containers.hpp>

namespace {

using namespace tessera;
using tessera::detail::callback_list;

std::vector<int> called;
callback_list* running = nullptr;

template <int Number, bool Freed>
bool note(void* context) noexcept {
  called.push_back(context == &called ? Number : -1);
  return Freed;
}

TEST(callback_list, are_all_called_in_the_order_of_registration) {
  called.clear();
  callback_list callbacks;
  EXPECT_FALSE(callbacks.run());
  ASSERT_TRUE(callbacks.add(note<1, false>, &called));
  EXPECT_FALSE(callbacks.run());
  ASSERT_TRUE(callbacks.add(note<2, true>, &called));
  ASSERT_TRUE(callbacks.add(note<3, false>, &called));
  EXPECT_TRUE(callbacks.run());
  EXPECT_EQ(called, (std::vector{1, 1, 2, 3}));
}

TEST(callback_list, are_not_called_recursively) {
  callback_list callbacks;
  running = &callbacks;
  called.clear();
  const auto again = [](void*) noexcept {
    called.push_back(4);
    return running->run();
  };
  ASSERT_TRUE(callbacks.add(again, nullptr));
  EXPECT_FALSE(callbacks.run());
  EXPECT_FALSE(callbacks.run());
  EXPECT_EQ(called, (std::vector{4, 4}));
}

}  // namespace
