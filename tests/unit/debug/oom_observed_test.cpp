// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/concurrent/locked.hpp>
#include <tessera/concurrent/per_device.hpp>
#include <tessera/concurrent/per_stream.hpp>
#include <tessera/debug/oom_observed.hpp>
#include <tessera/observe/snapshot.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

namespace {

using namespace tessera;
using namespace tessera::literals;

struct seen_failure {
  std::size_t requested, segment, reserved, limit, available;
  bool operator==(const seen_failure&) const = default;
};
struct keep {
  std::vector<seen_failure>* to = nullptr;
  void operator()(const out_of_memory& error) noexcept {
    if (to == nullptr) return;
    const usage now = error.at_failure();
    to->push_back({error.requested(), error.segment(), now.reserved, now.limit, error.available()});
  }
};
using plain = caching_allocator<pytorch<>, simulated_device>;

TEST(oom_observed, hears_of_each_failed_request_after_recovery) {
  std::vector<seen_failure> seen;
  oom_observed<plain, keep> pool(simulated_device({.capacity = 64_MiB}));
  pool.observer().to = &seen;
  void* const live = pool.allocate(20_MiB);
  pool.deallocate(pool.allocate(30_MiB));
  EXPECT_NE(pool.try_allocate(40_MiB), nullptr) << "recovery helps";
  EXPECT_EQ(pool.try_allocate(0), nullptr);
  EXPECT_TRUE(seen.empty());
  EXPECT_EQ(pool.try_allocate(6_MiB), nullptr);
  EXPECT_THROW((void)pool.allocate(10_MiB), out_of_memory);
  EXPECT_FALSE(pool.allocate_by_handle(11_MiB));
  EXPECT_EQ(pool.try_allocate(unlimited), nullptr);
  ASSERT_EQ(seen.size(), 4u);
  EXPECT_EQ(seen[0], (seen_failure{6_MiB, 20_MiB, 60_MiB, 64_MiB, 4_MiB}));
  EXPECT_EQ(seen[1], (seen_failure{10_MiB, 10_MiB, 60_MiB, 64_MiB, 4_MiB}));
  EXPECT_EQ(seen[2], (seen_failure{11_MiB, 12_MiB, 60_MiB, 64_MiB, 4_MiB}));
  EXPECT_EQ(seen[3].requested, unlimited);
  pool.deallocate(live);
}

// A request fails if and only if the observer hears of it, with its size.
TEST(oom_observed, hears_of_what_failed_in_random_programs_and_of_nothing_else) {
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    std::mt19937_64 random(seed);
    std::vector<seen_failure> seen;
    std::vector<std::size_t> failed;
    std::vector<void*> live;
    oom_observed<plain, keep> pool(simulated_device({.capacity = 64_MiB}));
    pool.observer().to = &seen;
    for (int i = 0; i < 3'000; ++i) {
      if (random() % 2 == 0 && !live.empty()) {
        std::swap(live[random() % live.size()], live.back());
        pool.deallocate(live.back());
        live.pop_back();
        continue;
      }
      const std::size_t bytes = 1 + random() % (std::size_t{1} << (9 + random() % 17));
      if (void* const p = pool.try_allocate(bytes)) {
        live.push_back(p);
      } else {
        failed.push_back(bytes);
      }
      ASSERT_EQ(seen.size(), failed.size());
      const std::size_t latest = seen.empty() ? 0 : seen.back().requested;
      ASSERT_EQ(latest, failed.empty() ? 0 : failed.back());
    }
    EXPECT_GT(failed.size(), 10u);
    EXPECT_GT(live.size(), 0u);
    for (void* const p : live) pool.deallocate(p);
  }
}

TEST(oom_observed, throws_what_the_observer_saw) {
  struct frees {
    oom_observed<plain, frees>* pool = nullptr;
    void* live = nullptr;
    std::size_t* allocated = nullptr;
    void operator()(const out_of_memory& error) noexcept {
      if (pool == nullptr) return;
      *allocated = error.at_failure().allocated;
      pool->deallocate(live);
    }
  };
  std::size_t allocated = 0;
  oom_observed<plain, frees> pool(simulated_device({.capacity = 64_MiB}));
  pool.observer() = {&pool, pool.allocate(60_MiB), &allocated};
  try {
    (void)pool.allocate(30_MiB);
    FAIL() << "it throws";
  } catch (const out_of_memory& error) {
    EXPECT_EQ(allocated, 60_MiB);
    EXPECT_EQ(error.at_failure().allocated, allocated);
  }
  EXPECT_EQ(pool.current_usage().allocated, 0u);
}

// A rejection tries no recovery: the cached 30 MiB stay.
TEST(oom_observed, hears_of_rejections) {
  using fast = with<pytorch<>, fail_fast<pytorch<>::recovery, true>>;
  std::vector<seen_failure> seen;
  oom_observed<caching_allocator<fast, simulated_device>, keep> pool(simulated_device({.capacity = 64_MiB}));
  pool.inner().policies().growth.limit = 60_MiB;
  pool.observer().to = &seen;
  pool.deallocate(pool.allocate(30_MiB));
  EXPECT_EQ(pool.try_allocate(40_MiB), nullptr);
  ASSERT_EQ(seen.size(), 1u);
  EXPECT_EQ(seen[0], (seen_failure{40_MiB, 40_MiB, 30_MiB, 60_MiB, 34_MiB}));
  EXPECT_EQ(pool.statistics().num_oom_rejections, 1u);
}

/// An observer that does with its allocator what a program may.
template <typename Pool>
struct uses_it {
  Pool* pool = nullptr;
  std::vector<void*>* to_free = nullptr;
  std::atomic<std::size_t>* calls = nullptr;
  void operator()(const out_of_memory& error) noexcept {
    if (pool == nullptr) return;
    ++*calls;
    const usage now = pool->current_usage();
    EXPECT_LE(now.allocated, now.limit);
    EXPECT_EQ(pool->try_allocate(error.requested() * 4, error.stream()), nullptr)
        << "and the observer is not called for it";
    void* const small = pool->try_allocate(1000, error.stream());
    pool->trim();
    EXPECT_STREQ(pool->audit(), nullptr);
    pool->deallocate(small);
    for (void* const p : *to_free) pool->deallocate(p);
    to_free->clear();
  }
};
template <template <typename> typename Front>
struct used_pool : oom_observed<Front<plain>, uses_it<used_pool<Front>>> {
  using oom_observed<Front<plain>, uses_it<used_pool<Front>>>::oom_observed;
};

template <template <typename> typename Front>
void use_in_observer() {
  used_pool<Front> pool(simulated_device({.capacity = 64_MiB}));
  std::atomic<std::size_t> calls = 0;
  std::vector<void*> to_free{pool.allocate(20_MiB), pool.allocate(20_MiB)};
  pool.observer().pool = &pool;
  pool.observer().to_free = &to_free;
  pool.observer().calls = &calls;
  EXPECT_EQ(pool.try_allocate(30_MiB), nullptr);
  EXPECT_EQ(calls, 1u);
  EXPECT_NE(pool.try_allocate(30_MiB), nullptr) << "the observer freed memory";
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&pool, t] {
      for (int i = 0; i < 200; ++i)
        pool.deallocate(pool.try_allocate(i % 2 == 0 ? 40_MiB : 1000, stream_id{t}));
    });
  }
  for (std::thread& each : threads) each.join();
  EXPECT_EQ(calls, 401u);
  EXPECT_STREQ(pool.audit(), nullptr);
}
TEST(oom_observed, may_use_a_locked_allocator) { use_in_observer<locked>(); }
TEST(oom_observed, may_use_an_allocator_of_streams) { use_in_observer<per_stream>(); }

struct with_number {
  int number = -1;
  std::vector<int>* to = nullptr;
  void operator()(const out_of_memory&) noexcept { to->push_back(number); }
};
TEST(oom_observed, has_an_observer_for_each_device) {
  std::vector<int> seen;
  std::vector<simulated_device> devices;
  for (unsigned n : {0u, 1u}) devices.push_back(simulated_device({.capacity = 64_MiB, .device = n}));
  per_device<oom_observed<locked<plain>, with_number>> pool(std::move(devices));
  for (int n : {0, 1}) pool.front(static_cast<std::size_t>(n)).observer() = {n, &seen};
  EXPECT_EQ(pool.try_allocate(100_MiB, 1), nullptr);
  EXPECT_EQ(pool.try_allocate(100_MiB, 0), nullptr);
  EXPECT_EQ(seen, (std::vector<int>{1, 0}));
}

}  // namespace
