// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/concurrent/arena.hpp>

namespace {

using tessera::detail::remote_free_queue;

remote_free_queue::item numbered(std::size_t n) { return {reinterpret_cast<void*>(n), n * 3}; }

TEST(remote_free_queue_threads, keeps_order_and_is_bounded) {
  remote_free_queue list;
  EXPECT_EQ(list.take().address, nullptr);
  for (int round = 0; round < 3; ++round) {
    for (std::size_t n = 1; n <= remote_free_queue::capacity; ++n) ASSERT_TRUE(list.push(numbered(n)));
    EXPECT_FALSE(list.push(numbered(1)));
    EXPECT_EQ(list.take().address, numbered(1).address);
    EXPECT_TRUE(list.push(numbered(remote_free_queue::capacity + 1)));
    std::size_t next = 2;
    list.take_all([&next](remote_free_queue::item i) {
      EXPECT_EQ(i.address, numbered(next).address);
      EXPECT_EQ(i.bytes, numbered(next).bytes);
      ++next;
    });
    EXPECT_EQ(next, remote_free_queue::capacity + 2);
    EXPECT_EQ(list.take().address, nullptr);
  }
}

TEST(remote_free_queue_threads, lose_nothing) {
  remote_free_queue list;
  constexpr std::size_t each = 20'000, threads = 3;
  std::atomic<bool> done = false;
  std::vector<int> seen(each * threads + 1);
  std::vector<std::thread> pushing;
  for (std::size_t t = 0; t < threads; ++t) {
    pushing.emplace_back([&list, t] {
      for (std::size_t n = 1; n <= each; ++n) {
        while (!list.push(numbered(t * each + n))) std::this_thread::yield();
      }
    });
  }
  std::thread taking([&] {
    const auto see = [&seen](remote_free_queue::item i) {
      const auto n = reinterpret_cast<std::uintptr_t>(i.address);
      if (i.bytes == n * 3) ++seen[n];
    };
    for (bool last = false; !last;) {
      last = done;
      list.take_all(see);
      if (const remote_free_queue::item i = list.take(); i.address != nullptr) see(i);
    }
  });
  for (auto& t : pushing) t.join();
  done = true;
  taking.join();
  for (std::size_t n = 1; n < seen.size(); ++n) ASSERT_EQ(seen[n], 1) << n;
}

}  // namespace
