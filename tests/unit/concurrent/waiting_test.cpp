// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <string_view>
#include <thread>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/concurrent/locked.hpp>
#include <tessera/concurrent/per_device.hpp>
#include <tessera/concurrent/per_stream.hpp>
#include <tessera/concurrent/waiting.hpp>
#include <tessera/extension/observer.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

namespace {

using namespace tessera;
using namespace std::chrono_literals;
using clock = std::chrono::steady_clock;

using one_mutex = waiting<locked<caching_allocator<paddle_family::auto_growth, simulated_device>>>;
using arenas = waiting<per_stream<caching_allocator<paddle_family::auto_growth, simulated_device>>>;
constexpr auto for_ever = std::chrono::hours(24);

simulated_device of(std::size_t capacity) { return simulated_device({.capacity = capacity}); }

template <typename Pool>
void wait_for_tries(const Pool& pool, std::uint64_t more_than) {
  while (pool.statistics().num_ooms <= more_than) std::this_thread::yield();
}

template <typename Pool>
class waiting_test : public testing::Test {};
using pools = testing::Types<one_mutex, arenas>;
TYPED_TEST_SUITE(waiting_test, pools);

TYPED_TEST(waiting_test, waits_for_a_free_of_another_thread) {
  TypeParam pool(for_ever, of(1_MiB));
  void* const held = pool.allocate(1_MiB);
  void* got = nullptr;
  std::thread second([&] { got = pool.allocate(1_MiB); });
  wait_for_tries(pool, 1);  // it tries again before it waits
  EXPECT_EQ(got, nullptr);
  pool.deallocate(held);
  second.join();
  EXPECT_EQ(got, held);
  pool.deallocate(got);
}

TYPED_TEST(waiting_test, every_way_to_free_wakes_who_waits) {
  for (int way = 0; way < 3; ++way) {
    TypeParam pool(for_ever, of(1_MiB));
    void* const held = pool.allocate(1_MiB);
    void* got = nullptr;
    std::thread second([&] { got = pool.try_allocate(1_MiB); });
    wait_for_tries(pool, 1);
    if (way == 0) {
      pool.deallocate(held, 1_MiB);
    } else if (way == 1) {
      EXPECT_TRUE(pool.try_deallocate(held));
    } else {
      pool.deallocate(held), pool.trim();
    }
    second.join();
    EXPECT_NE(got, nullptr);
    pool.deallocate(got);
  }
}

TYPED_TEST(waiting_test, a_free_that_is_not_enough_leaves_it_waiting) {
  TypeParam pool(for_ever, of(3_MiB));
  std::array<void*, 3> held{};
  for (void*& p : held) p = pool.allocate(1_MiB);
  std::atomic<void*> got{nullptr};
  std::thread second([&] { got = pool.allocate(2_MiB); });
  wait_for_tries(pool, 1);
  pool.deallocate(held[0]);
  wait_for_tries(pool, 2);
  EXPECT_EQ(got.load(), nullptr);
  pool.deallocate(held[1]);
  second.join();
  EXPECT_NE(got.load(), nullptr);
  pool.deallocate(held[2]);
  pool.deallocate(got);
}

/// If a wake-up were lost, a thread would wait forever.
TYPED_TEST(waiting_test, loses_no_wake_up) {
  TypeParam pool(for_ever, of(2_MiB));
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&pool, t] {
      for (int i = 0; i < 3'000; ++i) pool.deallocate(pool.allocate(1_MiB, stream_id{t % 2}));
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(pool.current_usage().allocated, 0u);
  EXPECT_STREQ(pool.audit(), nullptr);
}

/// A callback frees memory during the request that calls it. So that request finds it: the thread must
/// neither wait for that free nor try again because of it.
template <typename Pool>
struct frees_under_pressure {
  Pool& pool;
  std::atomic<int> calls{0};
  static bool call(void* context) noexcept {
    auto& self = *static_cast<frees_under_pressure*>(context);
    ++self.calls;
    self.pool.deallocate(self.pool.try_allocate(512, stream_id{1}));
    self.pool.trim(1_MiB);
    return true;
  }
};
TYPED_TEST(waiting_test, gives_up_though_callbacks_free) {
  TypeParam pool(50ms, of(2_MiB));
  void* const held = pool.allocate(1_MiB);
  frees_under_pressure<TypeParam> freeing{pool};
  ASSERT_TRUE(pool.on_pressure(&freeing.call, &freeing));
  EXPECT_EQ(pool.try_allocate(2_MiB), nullptr);
  EXPECT_GE(freeing.calls, 3) << "the first try, the one that waits and the last one";
  EXPECT_LT(freeing.calls, 20) << "and what the callback allocates tries, too";
  pool.deallocate(held);
}

TYPED_TEST(waiting_test, gives_up_though_others_free_all_the_time) {
  TypeParam pool(50ms, of(2_MiB));
  void* const held = pool.allocate(1_MiB);
  std::atomic<bool> done{false};
  std::thread other([&] {
    while (!done) pool.deallocate(pool.try_allocate(512));
  });
  EXPECT_EQ(pool.try_allocate(2_MiB), nullptr);
  done = true;
  other.join();
  pool.deallocate(held);
}

TYPED_TEST(waiting_test, gives_up_no_earlier_than_told_with_the_failure_of_what_it_asked) {
  TypeParam pool(20ms, of(1_MiB));
  void* const held = pool.allocate(1_MiB);
  const auto begin = clock::now();
  try {
    (void)pool.allocate(512);
    ADD_FAILURE() << "there is no memory";
  } catch (const out_of_memory& told) {
    EXPECT_EQ(told.requested(), 512u);
    EXPECT_EQ(told.at_failure().allocated, 1_MiB);
    EXPECT_EQ(told.numbers().waited_ms, 20);
    EXPECT_NE(std::string_view(told.what()).find("; waited 20 ms for other threads"), std::string_view::npos);
  }
  EXPECT_GE(clock::now() - begin, 20ms);
  EXPECT_GE(pool.statistics().num_ooms, 3u);  // at first, before it waits, and at the deadline
  const auto again = clock::now();
  EXPECT_EQ(pool.try_allocate(512), nullptr);
  EXPECT_GE(clock::now() - again, 20ms);
  pool.deallocate(held);
}

TYPED_TEST(waiting_test, without_patience_it_tries_once) {
  TypeParam pool(0ms, of(1_MiB));
  void* const held = pool.allocate(1_MiB);
  EXPECT_EQ(pool.try_allocate(512), nullptr);
  EXPECT_EQ(pool.statistics().num_ooms, 1u);
  EXPECT_THROW((void)pool.allocate(512), out_of_memory);
  EXPECT_EQ(pool.statistics().num_ooms, 2u);
  pool.deallocate(held);
}

TYPED_TEST(waiting_test, does_not_wait_for_what_can_never_be) {
  TypeParam pool(for_ever, of(1_MiB));
  EXPECT_EQ(pool.allocate(0), nullptr);
  EXPECT_EQ(pool.try_allocate(0), nullptr);
  EXPECT_EQ(pool.try_allocate(max_request + 1), nullptr);
  EXPECT_THROW((void)pool.allocate(unlimited), out_of_memory);
}

TEST(waiting, waits_for_handles_too) {
  one_mutex pool(for_ever, of(1_MiB));
  const block_handle held = pool.allocate_by_handle(1_MiB);
  block_handle got;
  std::thread second([&] { got = pool.allocate_by_handle(1_MiB); });
  wait_for_tries(pool, 1);
  pool.deallocate(held);
  second.join();
  EXPECT_TRUE(got);
  pool.deallocate(got);
}

TEST(waiting, waits_as_long_as_paddle_by_default) {
  EXPECT_EQ(one_mutex(of(1_MiB)).timeout(), 10s);
  EXPECT_EQ(arenas().timeout(), 10s);
  EXPECT_EQ(one_mutex(std::chrono::milliseconds::max()).timeout(), std::chrono::hours(24 * 365));
}

TEST(waiting, is_a_front_of_several_devices) {
  std::vector<simulated_device> devices;
  devices.push_back(of(1_MiB));
  devices.push_back(devices[0].another_device({.capacity = 1_MiB, .device = 1}));
  per_device<waiting<locked<caching_allocator<paddle_family::auto_growth, simulated_device>>>> pool(
      std::move(devices));
  void* const held = pool.allocate(1_MiB, 1);
  EXPECT_EQ(pool.device_of(held), 1u);
  void* got = nullptr;
  std::thread second([&] { got = pool.allocate(1_MiB, 1); });
  wait_for_tries(pool.front(1), 1);
  pool.deallocate(held);
  second.join();
  EXPECT_EQ(got, held);
  pool.deallocate(got);
}

}  // namespace
