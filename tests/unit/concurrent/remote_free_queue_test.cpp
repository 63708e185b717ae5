// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/concurrent/remote_free_queue.hpp>

namespace {

using tessera::hand_over;

hand_over::item numbered(std::size_t n) { return {reinterpret_cast<void*>(n), n * 3}; }

TEST(hand_over_threads, keeps_order_and_is_bounded) {
  hand_over list;
  EXPECT_EQ(list.take().address, nullptr);
  for (int round = 0; round < 3; ++round) {
    for (std::size_t n = 1; n <= hand_over::capacity; ++n) ASSERT_TRUE(list.push(numbered(n)));
    EXPECT_FALSE(list.push(numbered(1)));
    EXPECT_EQ(list.take().address, numbered(1).address);
    EXPECT_TRUE(list.push(numbered(hand_over::capacity + 1)));
    std::size_t next = 2;
    list.take_all([&next](hand_over::item i) {
      EXPECT_EQ(i.address, numbered(next).address);
      EXPECT_EQ(i.bytes, numbered(next).bytes);
      ++next;
    });
    EXPECT_EQ(next, hand_over::capacity + 2);
    EXPECT_EQ(list.take().address, nullptr);
  }
}

TEST(hand_over_threads, lose_nothing) {
  hand_over list;
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
    const auto see = [&seen](hand_over::item i) {
      const auto n = reinterpret_cast<std::uintptr_t>(i.address);
      if (i.bytes == n * 3) ++seen[n];
    };
    for (bool last = false; !last;) {
      last = done;
      list.take_all(see);
      if (const hand_over::item i = list.take(); i.address != nullptr) see(i);
    }
  });
  for (auto& t : pushing) t.join();
  done = true;
  taking.join();
  for (std::size_t n = 1; n < seen.size(); ++n) ASSERT_EQ(seen[n], 1) << n;
}

}  // namespace
