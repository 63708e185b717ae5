// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <thread>

#include <gtest/gtest.h>

#include <tessera/concurrent/mutex_guarded.hpp>

namespace {

using namespace tessera;
using detail::reentrancy_guard;
using lock = reentrancy_guard::lock;

TEST(reentrancy_guard_threads, are_those_of_other_threads) {
  reentrancy_guard users;
  const reentrancy_guard::call here(users, lock::device, "here");
  std::thread([&users] {
    for (lock wanted : {lock::settings, lock::blocks, lock::device}) users.check_lock(wanted);
  }).join();
}

TEST(reentrancy_guard_threads, may_use_other_allocators) {
  reentrancy_guard users, others;
  const reentrancy_guard::call here(users, lock::device, "here");
  others.check_lock(lock::settings);
  const reentrancy_guard::call there(others, lock::settings, "there");
  others.check_lock(lock::blocks);
}

TEST(reentrancy_guard_threads, end_in_any_order) {
  reentrancy_guard users;
  auto first = std::make_unique<reentrancy_guard::call>(users, lock::device, "first");
  auto second = std::make_unique<reentrancy_guard::call>(users, lock::device, "second");
  auto third = std::make_unique<reentrancy_guard::call>(users, lock::device, "third");
  second.reset();
  third.reset();
  first.reset();
  const reentrancy_guard::call after(users, lock::settings, "after");
  users.check_lock(lock::blocks);
}

TEST(reentrancy_guard_threads, may_take_later_locks) {
  reentrancy_guard users;
  const reentrancy_guard::call here(users, lock::blocks, "here");
  users.check_lock(lock::device);
}

using reentrancy_guard_threads_death = testing::Test;
TEST(reentrancy_guard_threads_death, abort_with_their_rule) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  reentrancy_guard users;
  const reentrancy_guard::call here(users, lock::blocks, "the rule of here");
  EXPECT_DEATH(users.check_lock(lock::blocks), "the rule of here");
  EXPECT_DEATH(users.check_lock(lock::settings), "the rule of here");
  reentrancy_guard others;
  const reentrancy_guard::call there(others, lock::device, "there");
  EXPECT_DEATH(users.check_lock(lock::blocks), "the rule of here") << "around a call of another allocator";
}

}  // namespace
