// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/concurrent/background_reclaiming.hpp>
#include <tessera/extension/private_pools.hpp>
#include <tessera/policy/evict_after.hpp>
#include <tessera/provider/host_pinned.hpp>
#include <tessera/tessera.hpp>

namespace {

using namespace tessera;

host_pinned::options unlocked() { return {.capacity = 64_MiB, .pin = host_pinned::pinning::never}; }

/// Host memory that counts event queries.
class counted_queries : public host_pinned {
 public:
  counted_queries() : host_pinned(unlocked()) {}
  [[nodiscard]] bool query(event& mark) noexcept {
    ++(std::this_thread::get_id() == maker ? by_maker : by_others);
    return host_pinned::query(mark);
  }
  static inline std::thread::id maker;
  static inline std::atomic<int> by_maker, by_others;
};

class background_queries : public testing::Test {
 protected:
  background_queries() {
    counted_queries::maker = std::this_thread::get_id();
    counted_queries::by_maker = counted_queries::by_others = 0;
  }
};

/// Frees a block while a stream uses it. The work of the stream ends when `done` is set.
template <typename Pool>
void free_in_use(Pool& pool, void* p, stream_id stream, const std::atomic<bool>& done) {
  ASSERT_TRUE(pool.record_stream(p, stream));
  pool.visit_provider([&](auto& device) {
    device.submit(stream, [&done] {
      while (!done) std::this_thread::yield();
    });
  });
  pool.deallocate(p);
}
void await_reclaiming(const auto& pool) {
  while (pool.current_usage().pending() > 0) std::this_thread::yield();
}

/// The rounds of a worker so far, and the rounds that it must make in a row.
struct rounds {
  std::atomic<int> made{0};
  std::atomic<int> wanted{1};
  static bool one(void* self) noexcept {
    auto& its = *static_cast<rounds*>(self);
    return ++its.made < its.wanted;
  }
  void await(int count) const {
    while (made < count) std::this_thread::yield();
  }
};

TEST(round_worker, makes_as_many_rounds_as_there_is_work_and_misses_none) {
  rounds work;
  detail::round_worker worker(&rounds::one, &work, std::chrono::microseconds(0));
  EXPECT_FALSE(worker.is_running());
  for (int wake = 1; wake <= 1000; ++wake) {
    work.wanted = wake;
    worker.wake();
    work.await(wake);
  }
  EXPECT_TRUE(worker.is_running());
  work.wanted = 1100;
  worker.wake();
  work.await(1100);
  worker.stop();
  EXPECT_EQ(work.made, 1100);
  EXPECT_FALSE(worker.is_running());
  worker.wake();
  EXPECT_FALSE(worker.is_running());
}

TEST(round_worker, makes_a_round_after_each_period) {
  rounds work;
  detail::round_worker worker(&rounds::one, &work, std::chrono::microseconds(0),
                              std::chrono::milliseconds(1));
  worker.wake();
  work.await(10);
}

TEST(round_worker, ends_while_it_rests) {
  rounds work;
  work.wanted = 2;
  detail::round_worker worker(&rounds::one, &work, std::chrono::hours(1));
  worker.wake();
  work.await(1);
  worker.stop();
  EXPECT_EQ(work.made, 1);
}

TEST(background_reclaiming, frees_blocks_while_nobody_calls) {
  background_reclaiming<caching_allocator<pinned, host_pinned>> pool{host_pinned{unlocked()}};
  const stream_id stream = pool.visit_provider([](auto& device) { return device.create_stream(); });
  for (int round = 0; round < 100; ++round) {
    std::atomic<bool> done = false;
    void* const p = pool.allocate(64_KiB);
    free_in_use(pool, p, stream, done);
    EXPECT_EQ(pool.current_usage().pending(), 64_KiB);
    done = true;
    await_reclaiming(pool);
    void* const again = pool.allocate(64_KiB);
    EXPECT_EQ(again, p);
    pool.deallocate(again);
  }
  EXPECT_EQ(pool.statistics().num_device_alloc, 1u);
  EXPECT_STREQ(pool.audit(), nullptr);
}

TEST_F(background_queries, come_from_the_thread_alone) {
  background_reclaiming<caching_allocator<pinned, counted_queries>> pool;
  const stream_id stream = pool.visit_provider([](auto& device) { return device.create_stream(); });
  std::atomic<bool> done = false;
  void* const other = pool.allocate(4_KiB);
  pool.deallocate(other);
  free_in_use(pool, pool.allocate(64_KiB), stream, done);
  const int before = counted_queries::by_maker;  // the miss may have queried
  for (int hit = 0; hit < 1000; ++hit) pool.deallocate(pool.allocate(4_KiB));
  done = true;
  await_reclaiming(pool);
  EXPECT_EQ(counted_queries::by_maker, before);
  EXPECT_GT(counted_queries::by_others, 0);
}

TEST_F(background_queries, come_from_the_caller_without_a_thread) {
  background_reclaiming<caching_allocator<pinned, counted_queries>> pool({}, {}, {.enabled = false});
  const stream_id stream = pool.visit_provider([](auto& device) { return device.create_stream(); });
  std::atomic<bool> done = false;
  void* const p = pool.allocate(64_KiB);
  free_in_use(pool, p, stream, done);
  EXPECT_FALSE(pool.has_worker());
  done = true;
  pool.visit_provider([&](auto& device) { device.synchronize(stream); });
  EXPECT_EQ(pool.current_usage().pending(), 64_KiB);
  EXPECT_EQ(pool.allocate(64_KiB), p);
  EXPECT_EQ(counted_queries::by_others, 0);
  EXPECT_GT(counted_queries::by_maker, 0);
}

TEST(background_reclaiming, begins_its_thread_when_a_block_is_first_held_back) {
  background_reclaiming<caching_allocator<pinned, host_pinned>> pool{host_pinned{unlocked()}};
  pool.deallocate(pool.allocate(64_KiB));
  void* const p = pool.allocate(64_KiB);
  ASSERT_TRUE(pool.record_stream(p, stream_id{}));
  EXPECT_FALSE(pool.has_worker());
  pool.deallocate(p);
  EXPECT_TRUE(pool.has_worker());
}

// No event is recorded during a capture, so only its end can wake the thread.
TEST(background_reclaiming, frees_what_was_freed_during_a_capture) {
  background_reclaiming<caching_allocator<pinned, host_pinned, extension::private_pools>> pool{
      host_pinned{unlocked()}};
  auto pools = pool.get<extension::private_pools>();
  const pool_id graph = pools.create();
  void* const p = pool.allocate(64_KiB);
  ASSERT_TRUE(pool.record_stream(p, stream_id{}));
  ASSERT_TRUE(pools.open(graph, extension::scope_kind::capture));
  pool.deallocate(p);
  EXPECT_EQ(pool.current_usage().pending(), 64_KiB);
  EXPECT_FALSE(pool.has_worker());
  ASSERT_TRUE(pools.close(graph));
  await_reclaiming(pool);
  EXPECT_TRUE(pool.has_worker());
}

// Its thread sleeps for an hour, so a request that needs memory finds completed events itself.
TEST(background_reclaiming, serves_a_miss_from_completed_blocks) {
  background_reclaiming<caching_allocator<pinned, host_pinned>> pool{
      host_pinned{unlocked()}, {}, {.pause = std::chrono::hours(1)}};
  const stream_id stream = pool.visit_provider([](auto& device) { return device.create_stream(); });
  std::atomic<bool> done = false;
  void* const p = pool.allocate(64_KiB);
  free_in_use(pool, p, stream, done);
  done = true;
  pool.visit_provider([&](auto& device) { device.synchronize(stream); });
  EXPECT_EQ(pool.allocate(64_KiB), p);
  EXPECT_EQ(pool.statistics().num_device_alloc, 1u);
}

TEST(background_reclaiming, ends_while_blocks_are_held_back) {
  std::atomic<bool> done = false;
  std::thread later;
  {
    background_reclaiming<caching_allocator<pinned, host_pinned>> pool{host_pinned{unlocked()}};
    for (int i = 0; i < 10; ++i) free_in_use(pool, pool.allocate(64_KiB), stream_id{}, done);
    EXPECT_GT(pool.current_usage().pending(), 0u);
    later = std::thread([&done] { done = true; });
  }
  later.join();
}

TEST(background_reclaiming, trims_with_and_without_waiting) {
  background_reclaiming<caching_allocator<pinned, host_pinned>> pool{
      host_pinned{unlocked()}, {}, {.pause = std::chrono::hours(1)}};
  std::atomic<bool> done = false;
  free_in_use(pool, pool.allocate(64_KiB), stream_id{}, done);
  pool.deallocate(pool.allocate(128_KiB));
  pool.trim_without_waiting();
  EXPECT_EQ(pool.current_usage().reserved, 64_KiB);
  done = true;
  pool.visit_provider([&](auto& device) { device.synchronize(stream_id{}); });
  pool.trim_without_waiting();
  EXPECT_EQ(pool.current_usage().reserved, 0u);
  free_in_use(pool, pool.allocate(64_KiB), stream_id{}, done);
  pool.trim();
  EXPECT_EQ(pool.current_usage().reserved, 0u);
}

/// Host memory that notes when another thread than its maker releases memory, which takes long.
class slow_for_others : public host_pinned {
 public:
  slow_for_others() : host_pinned(unlocked()) {
    maker = std::this_thread::get_id();
    begun = false;
  }
  bool release(void* p, std::size_t bytes) noexcept {
    note();
    return host_pinned::release(p, bytes);
  }
  static inline std::thread::id maker;
  static inline std::atomic<bool> begun;

 private:
  static void note() {
    if (std::this_thread::get_id() == maker) return;
    begun = true;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
};

// The thread frees a block and releases its memory, with the mutex unlocked. Meanwhile, another thread calls trim().
TEST(background_reclaiming, trims_what_its_thread_releases) {
  background_reclaiming<caching_allocator<passthrough, slow_for_others>> pool;
  std::atomic<bool> done = false;
  const stream_id stream = pool.visit_provider([](auto& device) { return device.create_stream(); });
  free_in_use(pool, pool.allocate(64_KiB), stream, done);
  done = true;
  while (!slow_for_others::begun) std::this_thread::yield();
  pool.trim();
  EXPECT_EQ(pool.current_usage().reserved, 0u);
}

template <typename Recipe>
void stress() {
  background_reclaiming<caching_allocator<Recipe, host_pinned>> pool{
      host_pinned{unlocked()}, {}, {.pause = std::chrono::microseconds(1)}};
  std::atomic<int> overwritten = 0;
  std::vector<std::thread> threads;
  for (unsigned char mine = 1; mine <= 4; ++mine) {
    threads.emplace_back([&pool, &overwritten, mine] {
      const stream_id stream = pool.visit_provider([](auto& device) { return device.create_stream(); });
      for (std::size_t round = 0; round < 500; ++round) {
        const std::size_t bytes = 4_KiB << round % 4;
        auto* const p = static_cast<unsigned char*>(pool.allocate(bytes));
        std::memset(p, mine, bytes);
        if (round % 3 != 0) {
          (void)pool.record_stream(p, stream);
          pool.visit_provider([&](auto& device) {
            device.submit(stream, [p, bytes, mine, &overwritten] {
              for (std::size_t i = 0; i < bytes; i += 512) overwritten += p[i] != mine;
            });
          });
        }
        pool.deallocate(p);
      }
    });
  }
  for (auto& t : threads) t.join();
  EXPECT_EQ(overwritten, 0);
  EXPECT_STREQ(pool.audit(), nullptr);
  pool.trim();
  EXPECT_EQ(pool.current_usage().reserved, 0u);
}

TEST(background_reclaiming, gives_no_block_away_that_a_stream_still_reads) {
  stress<pinned>();
  stress<pinned_packed>();
#if !defined(_WIN32)  // where host_pinned has no virtual memory
  stress<torch_npu_family::pinned_expandable>();
#endif
}

TEST(background_eviction, gives_idle_memory_back_without_a_call) {
  using recipe = with<pinned, evict_after<20>>;
  background_reclaiming<caching_allocator<recipe, host_pinned>> pool{
      host_pinned{unlocked()}, {}, {.evict_every = std::chrono::milliseconds(1)}};
  void* const kept = pool.allocate(1_MiB);
  pool.deallocate(pool.allocate(4_MiB));
  while (pool.current_usage().cached > 0) std::this_thread::yield();
  EXPECT_EQ(pool.current_usage().reserved, 1_MiB);
  pool.deallocate(kept);
  while (pool.current_usage().reserved > 0) std::this_thread::yield();
  EXPECT_EQ(pool.audit(), nullptr);
}

TEST(background_eviction, needs_an_enabled_thread) {
  using recipe = with<pinned, evict_after<0>>;
  background_reclaiming<caching_allocator<recipe, host_pinned>> pool{
      host_pinned{unlocked()}, {}, {.enabled = false, .evict_every = std::chrono::milliseconds(1)}};
  EXPECT_FALSE(pool.has_worker());
  pool.deallocate(pool.allocate(4_MiB));
  EXPECT_EQ(pool.current_usage().cached, 4_MiB);
  pool.evict_idle();
  EXPECT_EQ(pool.current_usage().cached, 0u);
}

}  // namespace
