// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <random>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/provider/adaptor.hpp>
#include <tessera/tessera.hpp>

#include "devices.hpp"

namespace adaptor_tests {

/// Each thread uses its own stream. It also passes blocks to the next thread.
template <typename Pool>
void run_threads(Pool& pool, int threads, int rounds, std::size_t largest) {
  std::vector<std::atomic<void*>> given(static_cast<std::size_t>(threads));
  std::vector<std::thread> running;
  for (int t = 0; t < threads; ++t) {
    running.emplace_back([&, t] {
      std::mt19937_64 random(static_cast<std::uint64_t>(t));
      std::vector<void*> mine;
      const tessera::stream_id own{static_cast<std::uint64_t>(t)};
      for (int i = 0; i < rounds; ++i) {
        const std::size_t what = random() % 16;
        if (what < 7 && mine.size() < 20) {
          if (void* p = pool.try_allocate(1 + random() % largest, own)) mine.push_back(p);
        } else if (what < 13 && !mine.empty()) {
          if (what == 7) (void)pool.record_stream(mine.back(), tessera::stream_id{random() % 4});
          pool.deallocate(mine.back());
          mine.pop_back();
        } else if (what < 15 && !mine.empty()) {
          void* const other = given[random() % given.size()].exchange(mine.back());
          mine.pop_back();
          if (other != nullptr) mine.push_back(other);
        } else if (random() % 32 == 0) {
          pool.trim(random() % 2 == 0 ? 0 : pool.current_usage().reserved / 2);
        } else {
          const tessera::usage now = pool.current_usage();
          EXPECT_EQ(now.active + now.cached, now.reserved);
          EXPECT_GE(pool.statistics().all.allocation.current, 0);
          EXPECT_STREQ(pool.audit(), nullptr);
        }
      }
      for (void* p : mine) pool.deallocate(p);
    });
  }
  for (auto& t : running) t.join();
  for (auto& g : given) pool.deallocate(g.load());
}

/// The same with a pool over the device of another pool. At the end, that device has all memory back.
template <typename Pool, typename Ref>
void run_threads_and_give_back(Ref shared, int threads, int rounds, std::size_t largest) {
  {
    Pool pool{shared};
    run_threads(pool, threads, rounds, largest);
    pool.trim();
    EXPECT_STREQ(pool.audit(), nullptr);
    EXPECT_EQ(pool.current_usage().allocated, 0u);
    EXPECT_EQ(pool.current_usage().reserved, 0u);
  }
  EXPECT_EQ(outstanding(shared.inner()), 0u);
}

/// Runs threads over each recipe on a device for one thread, then over recipes that release memory at every free.
template <template <typename> typename FrontEnd, typename... Recipes>
void run_threads_over_recipes() {
  using namespace tessera;
  using namespace tessera::literals;
  simulated_device for_one_thread{simulated_device::options{.capacity = 200_MiB}};
  (run_threads_and_give_back<FrontEnd<caching_allocator<Recipes, provider_ref<simulated_device>>>>(
       provider_ref(for_one_thread), 4, 4000, 8_MiB),
   ...);
  gated_device shared;
  run_threads_and_give_back<FrontEnd<caching_allocator<passthrough, gated_ref>>>(gated_ref(shared), 4, 3000,
                                                                                 64_KiB);
  using ranges = with<pytorch_family::expandable, evict_at_free<>>;
  run_threads_and_give_back<FrontEnd<caching_allocator<ranges, gated_ref>>>(gated_ref(shared), 4, 3000,
                                                                            64_KiB);
}

/// Each thread has its stream write to blocks. It frees them at once, or passes them to the next thread,
/// whose stream then reads them.
template <typename Pool>
void run_streams_in_host_memory(int threads, int rounds) {
  using tessera::provider::host_pinned;
  host_pinned device{
      host_pinned::options{.capacity = tessera::operator""_MiB(64), .pin = host_pinned::pinning::never}};
  std::atomic<int> wrong = 0;
  {
    Pool pool{tessera::provider::provider_ref(device)};
    std::vector<tessera::stream_id> streams;
    for (int t = 0; t < threads; ++t) streams.push_back(device.create_stream());
    std::atomic<void*> given = nullptr;
    std::vector<std::thread> running;
    for (int t = 0; t < threads; ++t) {
      running.emplace_back([&, t] {
        std::mt19937_64 random(static_cast<std::uint64_t>(t));
        const tessera::stream_id own = streams[static_cast<std::size_t>(t)];
        for (int i = 0; i < rounds; ++i) {
          if (random() % 16 == 0) pool.trim();
          const std::size_t words = 3 + random() % (random() % 8 == 0 ? 400'000 : 4'000);
          auto* const mine = static_cast<std::uint64_t*>(pool.try_allocate(words * 8, own));
          if (mine == nullptr) continue;
          const std::uint64_t mark = random();
          device.submit(own, [=] { mine[0] = mine[words - 1] = mark, mine[1] = ~mark; });
          device.submit(own, [=, &wrong] { wrong += mine[0] != mark || mine[words - 1] != mark; });
          if (i % 4 != 0) {
            pool.deallocate(mine);
            continue;
          }
          device.synchronize(own);
          auto* const other = static_cast<std::uint64_t*>(given.exchange(mine));
          if (other == nullptr) continue;
          device.submit(own, [=, &wrong] { wrong += other[1] != ~other[0]; });
          (void)pool.record_stream(other, own);
          pool.deallocate(other);
        }
      });
    }
    for (auto& t : running) t.join();
    pool.deallocate(given.load());
    pool.trim();
    EXPECT_STREQ(pool.audit(), nullptr);
    EXPECT_EQ(pool.current_usage().reserved, 0u);
  }
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(outstanding(device), 0u);
}

/// The same while every second to twelfth call of the device fails.
template <typename Pool>
void run_threads_with_failing_calls() {
  for (std::uint64_t k = 2; k <= 12; k += 2) {
    gated_device shared(tessera::operator""_MiB(200));
    shared.with([k](auto& d) { d.fail_every(k); });
    {
      Pool pool{gated_ref(shared)};
      run_threads(pool, 3, 1500, tessera::operator""_MiB(8));
      EXPECT_STREQ(pool.audit(), nullptr);
      shared.with([](auto& d) { d.fail_every(0); });
      pool.trim();
      EXPECT_STREQ(pool.audit(), nullptr);
      EXPECT_EQ(pool.current_usage().allocated, 0u);
      EXPECT_EQ(pool.current_usage().reserved, 0u);
    }
    EXPECT_EQ(outstanding(shared), 0u) << "with every call " << k << " failing";
  }
}

template <typename Pool>
struct cache_above {
  Pool* pool;
  std::atomic<int> calls{0};
};
/// A callback may use the allocator that calls it, whatever other threads do.
template <typename Pool>
void use_the_allocator_under_pressure() {
  using namespace tessera;
  gated_device shared(300_MiB);
  Pool pool{gated_ref(shared)};
  cache_above<Pool> above{&pool};
  ASSERT_TRUE(pool.on_pressure(
      [](void* given) noexcept {
        auto& self = *static_cast<cache_above<Pool>*>(given);
        ++self.calls;
        self.pool->deallocate(self.pool->try_allocate(40_MiB, stream_id{9}));
        self.pool->trim();
        return true;
      },
      &above));
  std::vector<std::thread> running;
  for (std::uint64_t t = 0; t < 3; ++t) {
    running.emplace_back([&pool, t] {
      for (std::size_t i = 1; i < 200; ++i) pool.deallocate(pool.try_allocate(i % 7 * 10_MiB, stream_id{t}));
    });
  }
  for (auto& t : running) t.join();
  EXPECT_GT(above.calls, 0);
  EXPECT_STREQ(pool.audit(), nullptr);
  EXPECT_EQ(pool.current_usage().allocated, 0u);
}

}  // namespace adaptor_tests
