// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/core/allocator_event.hpp>
#include <tessera/detail/callbacks.hpp>

namespace {

using namespace tessera;
using tessera::detail::callback_list;
using tessera::detail::reporter;

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

struct recursive {
  void (*use)(void* context, const allocator_event&) = nullptr;
  void* context = nullptr;
  int count = 0;
  void on(const allocator_event& event) noexcept {
    ++count;
    if (use != nullptr) use(context, event);
  }
};

TEST(reporter, reports_one_event_after_the_other) {
  reporter<recursive> one(recursive{});
  one.report({});
  one.report({});
  EXPECT_EQ(one.observer().count, 2);
  static_assert(std::is_empty_v<reporter<ignore_events>>);
}

TEST(reporter_death, refuses_events_of_an_observer_that_uses_the_allocator) {
  reporter<recursive> one(recursive{});
  one.observer().use = [](void* same, const allocator_event& event) {
    static_cast<reporter<recursive>*>(same)->report(event);
  };
  one.observer().context = &one;
  EXPECT_DEATH(one.report({}), "an observer must not use the allocator that calls it");
}

}  // namespace
