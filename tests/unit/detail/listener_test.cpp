// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <type_traits>

#include <gtest/gtest.h>

#include <tessera/core/allocator_event.hpp>
#include <tessera/detail/listener.hpp>

namespace {

using namespace tessera;

struct recursive {
  void (*use)(void* context, const allocator_event&) = nullptr;
  void* context = nullptr;
  int told = 0;
  void on(const allocator_event& event) noexcept {
    ++told;
    if (use != nullptr) use(context, event);
  }
};

TEST(listener, is_told_one_event_after_the_other) {
  detail::listener<recursive> one(recursive{});
  one.tell({});
  one.tell({});
  EXPECT_EQ(one.observer().told, 2);
  static_assert(std::is_empty_v<detail::listener<ignore_events>>);
}

TEST(listener_death, must_not_be_told_what_its_own_use_of_the_allocator_does) {
  detail::listener<recursive> one(recursive{});
  one.observer().use = [](void* same, const allocator_event& event) {
    static_cast<detail::listener<recursive>*>(same)->tell(event);
  };
  one.observer().context = &one;
  EXPECT_DEATH(one.tell({}), "an observer must not use the allocator that calls it");
}

}  // namespace
