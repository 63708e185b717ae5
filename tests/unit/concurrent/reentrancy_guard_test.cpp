// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <mutex>
#include <thread>

#include <gtest/gtest.h>

#include <tessera/concurrent/mutex_guarded.hpp>
#include <tessera/core/allocator_event.hpp>

namespace {

using namespace tessera;
using detail::reentrancy_guard, detail::forwarding_observer;
using lock = reentrancy_guard::lock;

struct counting_observer {
  int* events;
  void on(const allocator_event&) noexcept { ++*events; }
};
TEST(reentrancy_guard_threads, are_those_of_other_threads) {
  reentrancy_guard users;
  const reentrancy_guard::call here(users, lock::device, "here");
  std::thread([&users] {
    for (lock wanted : {lock::settings, lock::blocks, lock::observer, lock::device})
      users.check_lock<counting_observer>(wanted);
  }).join();
}

TEST(reentrancy_guard_threads, end_in_any_order) {
  reentrancy_guard users;
  auto first = std::make_unique<reentrancy_guard::call>(users, lock::device, "first");
  auto second = std::make_unique<reentrancy_guard::call>(users, lock::device, "second");
  auto third = std::make_unique<reentrancy_guard::call>(users, lock::device, "third");
  second.reset();
  third.reset();
  first.reset();
  users.check_lock<counting_observer>(lock::settings);
}

TEST(reentrancy_guard_threads, may_take_later_locks) {
  reentrancy_guard users;
  const reentrancy_guard::call here(users, lock::blocks, "here");
  users.check_lock<counting_observer>(lock::observer);
  users.check_lock<counting_observer>(lock::device);
  int events = 0;
  counting_observer inner{&events};
  users.report(inner, {});
  EXPECT_EQ(events, 1);
}

TEST(reentrancy_guard_threads, a_forwarding_observer_passes_each_event_to_its_observer) {
  reentrancy_guard users;
  int events = 0;
  counting_observer counting{&events};
  forwarding_observer<counting_observer>(counting, users).on({});
  std::mutex mutex;
  forwarding_observer<counting_observer>(counting, users, &mutex).on({});
  EXPECT_EQ(events, 2);
  EXPECT_TRUE(mutex.try_lock());
  mutex.unlock();
  static_assert(detail::is_heard<forwarding_observer<counting_observer>>);
  static_assert(!detail::is_heard<forwarding_observer<ignore_events>>);
  users.check_lock<counting_observer>(lock::settings);
}

struct querying_observer {
  const reentrancy_guard* users;
  lock wanted;
  void on(const allocator_event&) noexcept { users->check_lock<querying_observer>(wanted); }
};

using reentrancy_guard_threads_death = testing::Test;
TEST(reentrancy_guard_threads_death, abort_with_their_rule) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  reentrancy_guard users;
  const reentrancy_guard::call here(users, lock::blocks, "the rule of here");
  EXPECT_DEATH(users.check_lock<ignore_events>(lock::blocks), "the rule of here");
  EXPECT_DEATH(users.check_lock<ignore_events>(lock::settings), "the rule of here");
  querying_observer observer{&users, lock::device};
  users.report(observer, {});
  observer.wanted = lock::observer;
  EXPECT_DEATH(users.report(observer, {}), "an observer must not use the allocator that calls it");
}

}  // namespace
