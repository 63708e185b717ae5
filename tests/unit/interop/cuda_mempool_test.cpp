// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <thread>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/concurrent/locked.hpp>
#include <tessera/extension/private_pools.hpp>
#include <tessera/interop/cuda_mempool.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

namespace {

using namespace tessera;
using pool_attribute = cuda_mempool<caching_allocator<cuda_async, simulated_device>>::attribute;
using driver = cuda_mempool<caching_allocator<cuda_async, simulated_device>>;
constexpr stream_id a{1}, b{2}, c{3};
constexpr std::uint64_t long_time = 1'000'000'000;

bool is_whole(const driver& pool) { return pool.audit() == nullptr; }
void only_same_stream(driver& pool) {
  for (const auto what : {pool_attribute::follow_event_dependencies, pool_attribute::allow_opportunistic,
                          pool_attribute::allow_internal_dependencies})
    ASSERT_TRUE(pool.set(what, 0));
}

TEST(cuda_mempool, serves_and_refuses_as_any_allocator_here) {
  driver pool{simulated_device{simulated_device::options{.capacity = 4_MiB}}};
  EXPECT_EQ(pool.allocate_async(0, a), nullptr);
  void* const p = pool.allocate_async(4_MiB, a);
  EXPECT_EQ(pool.try_allocate_async(1, a), nullptr);
  EXPECT_THROW((void)pool.allocate_async(1, a), out_of_memory);
  EXPECT_FALSE(pool.try_free_async(static_cast<char*>(p) + 512, a));
  EXPECT_FALSE(pool.try_free_async(nullptr, a));
  pool.free_async(nullptr, a);
  pool.free_async(p, a);
  EXPECT_FALSE(pool.try_free_async(p, a));
  EXPECT_DEATH(pool.free_async(p, a), "free_async: not the address of a live block");
  EXPECT_TRUE(is_whole(pool));
}

TEST(cuda_mempool, frees_in_order_of_the_stream_that_frees) {
  driver pool;
  only_same_stream(pool);
  void* const p = pool.allocate_async(2_MiB, a);
  pool.provider().submit(b, long_time);
  pool.free_async(p, b);
  EXPECT_NE(pool.allocate_async(2_MiB, a), p);
  EXPECT_EQ(pool.allocate_async(2_MiB, b), p);
  EXPECT_TRUE(is_whole(pool));
}

TEST(cuda_mempool, lets_the_stream_that_frees_wait_for_those_that_were_recorded) {
  driver pool;
  void* const p = pool.allocate_async(2_MiB, a);
  ASSERT_TRUE(pool.record_stream(p, b) && pool.record_stream(p, a));
  pool.provider().submit(a, long_time);
  pool.provider().submit(b, 2 * long_time);
  pool.free_async(p, c);
  EXPECT_EQ(pool.current_usage().pending(), 0u);
  EXPECT_TRUE(pool.provider().is_ordered_after(c, b, 1));
  EXPECT_TRUE(pool.provider().is_ordered_after(c, a, 1));
  EXPECT_FALSE(pool.provider().is_ordered_after(a, b, 1));  // the stream of the allocation continues
  EXPECT_EQ(pool.allocate_async(2_MiB, c), p);
  EXPECT_EQ(pool.provider().calls().record, 0u);
  pool.free_async(p, c);
  EXPECT_TRUE(is_whole(pool));
}

TEST(cuda_mempool, keeps_a_block_pending_if_the_join_fails) {
  driver pool;
  void* const p = pool.allocate_async(2_MiB, a);
  ASSERT_TRUE(pool.record_stream(p, b));
  pool.provider().submit(b, long_time);
  pool.provider().fail_call(2);  // the first joins the stream of the allocation
  pool.free_async(p, c);
  EXPECT_EQ(pool.current_usage().pending(), 2_MiB);
  EXPECT_EQ(pool.get(pool_attribute::used_current), 2_MiB);
  EXPECT_TRUE(is_whole(pool));
  pool.provider().advance(long_time);
  EXPECT_EQ(pool.allocate_async(2_MiB, c), p);
  EXPECT_TRUE(is_whole(pool));
}

/// Counts how often it is asked whether a stream exists.
struct device_with_streams : simulated_device {
  int asked = 0;
  [[nodiscard]] bool has_stream(stream_id) noexcept { return ++asked > 0; }
};
TEST(cuda_mempool, keeps_it_pending_until_the_end_of_a_capture) {
  using allocator = caching_allocator<cuda_async, device_with_streams, extension::private_pools>;
  cuda_mempool<allocator> pool;
  device_with_streams& device = pool.provider();
  void* const p = pool.allocate_async(2_MiB, a);
  ASSERT_TRUE(pool.record_stream(p, b));
  device.submit(a, 2 * long_time);
  device.submit(b, long_time);
  auto pools = pool.pool().get<extension::private_pools>();
  const pool_id graph = pools.create();
  ASSERT_TRUE(pools.open(graph, c, extension::scope_kind::capture));
  const auto before = device.calls();
  device.asked = 0;
  device.fail_every(1);
  pool.free_async(p, c);
  device.fail_every(0);
  const auto& after = device.calls();
  EXPECT_EQ(after.synchronize + after.record + after.wait + after.query,
            before.synchronize + before.record + before.wait + before.query);
  EXPECT_EQ(device.asked, 0);
  EXPECT_EQ(pool.current_usage().pending(), 2_MiB);
  EXPECT_LT(device.now_ns(), long_time);
  ASSERT_TRUE(pools.close(graph));
  (void)pool.pool().process_events();
  device.advance(long_time);
  EXPECT_NE(pool.allocate_async(2_MiB, c), p) << "the stream of its allocation still works";
  device.advance(long_time);
  EXPECT_EQ(pool.allocate_async(2_MiB, c), p);
  EXPECT_EQ(pool.audit(), nullptr);
}

TEST(cuda_mempool, releases_only_idle_memory_above_the_threshold) {
  driver pool;
  ASSERT_TRUE(pool.set(pool_attribute::release_threshold, 5_MiB));
  void* const small = pool.allocate_async(2_MiB, a);
  void* const large = pool.allocate_async(4_MiB, a);
  void* const busy = pool.allocate_async(6_MiB, b);
  pool.free_async(small, a);
  pool.free_async(large, a);
  pool.provider().submit(b, long_time);
  pool.free_async(busy, b);
  EXPECT_TRUE(pool.synchronize(a));
  EXPECT_EQ(pool.get(pool_attribute::reserved_current), 6_MiB);  // the work of b is not done
  EXPECT_TRUE(pool.synchronize(b));
  EXPECT_EQ(pool.get(pool_attribute::reserved_current), 0u);
}

TEST(cuda_mempool, stops_giving_back_at_the_threshold) {
  driver pool;
  ASSERT_TRUE(pool.set(pool_attribute::release_threshold, 3_MiB));
  void* blocks[3];
  for (void*& p : blocks) p = pool.allocate_async(2_MiB, a);
  for (void* p : blocks) pool.free_async(p, a);
  EXPECT_TRUE(pool.synchronize(a));
  EXPECT_EQ(pool.get(pool_attribute::reserved_current), 2_MiB);
}

TEST(cuda_mempool, reports_that_a_stream_could_not_be_waited_for) {
  driver pool;
  pool.free_async(pool.allocate_async(2_MiB, a), a);
  pool.provider().fail_call(2);  // the wait for the event; without an event, the whole stream is waited for
  EXPECT_FALSE(pool.synchronize(a));
  EXPECT_EQ(pool.get(pool_attribute::reserved_current), 2_MiB);
  EXPECT_TRUE(pool.synchronize(a));
  EXPECT_EQ(pool.get(pool_attribute::reserved_current), 0u);
}

TEST(cuda_mempool, trims_a_segment_whose_parts_were_freed_on_several_streams) {
  driver pool;
  only_same_stream(pool);
  void* const low = pool.allocate_async(1_MiB, a);
  void* const high = pool.allocate_async(1_MiB, a);
  pool.free_async(low, b);
  pool.provider().submit(c, long_time);
  pool.free_async(high, c);
  EXPECT_TRUE(is_whole(pool));
  pool.trim_to(0);
  EXPECT_EQ(pool.get(pool_attribute::reserved_current), 2_MiB);
  pool.provider().advance(long_time);
  pool.trim_to(0);
  EXPECT_EQ(pool.get(pool_attribute::reserved_current), 0u);
  EXPECT_TRUE(is_whole(pool));
}

TEST(cuda_mempool, begins_with_all_rules_on_and_threshold_0) {
  driver pool;
  for (const auto what : {pool_attribute::follow_event_dependencies, pool_attribute::allow_opportunistic,
                          pool_attribute::allow_internal_dependencies}) {
    EXPECT_EQ(pool.get(what), 1u);
    EXPECT_FALSE(pool.set(what, 2));
    EXPECT_TRUE(pool.set(what, 0));
    EXPECT_EQ(pool.get(what), 0u);
    EXPECT_TRUE(pool.set(what, 1));
    EXPECT_EQ(pool.get(what), 1u);
  }
  EXPECT_EQ(pool.get(pool_attribute::release_threshold), 0u);
  EXPECT_TRUE(pool.set(pool_attribute::release_threshold, std::numeric_limits<std::uint64_t>::max()));
  EXPECT_EQ(pool.get(pool_attribute::release_threshold), std::numeric_limits<std::uint64_t>::max());
}

TEST(cuda_mempool, explains_the_failure_of_a_stream) {
  driver pool{simulated_device{simulated_device::options{.capacity = 4_MiB}}};
  (void)pool.allocate_async(3_MiB, a);
  try {
    (void)pool.allocate_async(2_MiB, b);
    FAIL();
  } catch (const out_of_memory& error) {
    EXPECT_EQ(error.stream(), b);
    EXPECT_EQ(error.at_failure().allocated, 3_MiB);
  }
}

template <typename A>
concept shows_its_provider = requires(cuda_mempool<A>& pool) { pool.provider(); };
static_assert(shows_its_provider<caching_allocator<cuda_async, simulated_device>>);
static_assert(!shows_its_provider<locked<caching_allocator<cuda_async, simulated_device>>>);

TEST(cuda_mempool_threads, share_a_locked_one) {
  using async_allocator =
      tessera::caching_allocator<tessera::recipe::cuda_async, tessera::provider::simulated_device>;
  using pool_type = tessera::interop::cuda_mempool<tessera::concurrent::locked<async_allocator>>;
  pool_type pool;
  (void)pool.set(pool_type::attribute::release_threshold, 64_MiB);
  const auto work = [&pool](tessera::stream_id stream) {
    void* const p = pool.allocate_async(40_MiB, stream);
    pool.free_async(p, stream);
    pool.synchronize(stream);  // releases what is reserved above 64 MiB
  };
  std::thread first(work, tessera::stream_id{1}), second(work, tessera::stream_id{2});
  first.join();
  second.join();
  const std::uint64_t most = pool.get(pool_type::attribute::reserved_high);
  EXPECT_TRUE(most == 40_MiB || most == 80_MiB);
  EXPECT_LE(pool.get(pool_type::attribute::reserved_current), 64_MiB);
}

/// Threads allocate, free on any stream, synchronize, trim and set attributes. Every k-th call of the device fails.
void share_in_threads(std::uint64_t every_failing) {
  using pool_type = cuda_mempool<locked<caching_allocator<cuda_async, simulated_device>>>;
  pool_type pool{
      simulated_device{simulated_device::options{.capacity = 64_MiB, .fail_every = every_failing}}};
  std::atomic<std::size_t> live{0}, most{0};
  const auto work = [&](std::uint64_t number) {
    std::mt19937_64 random(number);
    struct owned {
      void* p;
      std::size_t bytes;
    };
    std::vector<owned> mine;
    const stream_id own{number};
    const auto free_last = [&](stream_id on) {
      live -= mine.back().bytes;
      pool.free_async(mine.back().p, on);
      mine.pop_back();
    };
    for (int i = 0; i < 1'500; ++i) {
      const std::size_t what = random() % 16;
      if (what < 8 && mine.size() < 12) {
        const std::size_t bytes = 512 * (1 + random() % 6'000);
        if (void* const p = pool.try_allocate_async(bytes, own); p != nullptr) {
          mine.push_back({p, bytes});
          const std::size_t now = live += bytes;
          for (std::size_t seen = most; now > seen && !most.compare_exchange_weak(seen, now);) {
          }
        }
      } else if (what < 13 && !mine.empty()) {
        const stream_id other{random() % 4};
        if (what == 12) (void)pool.record_stream(mine.back().p, other);
        free_last(what == 8 ? other : own);
      } else if (what == 13) {
        const bool is_done = pool.synchronize(own);
        EXPECT_TRUE(is_done || every_failing != 0);
      } else if (what == 14) {
        pool.trim_to(random() % 2 == 0 ? 0 : 8_MiB);
      } else {
        EXPECT_TRUE(pool.set(pool_attribute::release_threshold, random() % 3 * 8_MiB));
        EXPECT_TRUE(pool.set(pool_attribute::allow_opportunistic, random() % 2));
        EXPECT_FALSE(pool.try_free_async(&random, own));
        EXPECT_STREQ(pool.audit(), nullptr);
      }
    }
    while (!mine.empty()) free_last(own);
  };
  std::vector<std::thread> threads;
  for (std::uint64_t i = 0; i < 4; ++i) threads.emplace_back(work, i);
  for (std::thread& each : threads) each.join();
  // Blocks that the threads had at the same time are never more than the maximum.
  EXPECT_GE(pool.get(pool_attribute::used_high), most.load());
  EXPECT_GE(pool.get(pool_attribute::reserved_high), pool.get(pool_attribute::used_high));
  pool.pool().visit_provider([](simulated_device& device) { device.fail_every(0); });
  for (std::uint64_t i = 0; i < 4; ++i) EXPECT_TRUE(pool.synchronize(stream_id{i}));
  pool.trim_to(0);
  EXPECT_EQ(pool.get(pool_attribute::used_current), 0u);
  EXPECT_EQ(pool.get(pool_attribute::reserved_current), 0u);
  for (const auto what : {pool_attribute::used_high, pool_attribute::reserved_high}) {
    EXPECT_TRUE(pool.set(what, 0));
    EXPECT_EQ(pool.get(what), 0u);
  }
  EXPECT_STREQ(pool.audit(), nullptr);
}
TEST(cuda_mempool_threads, find_maxima_that_count_every_block) { share_in_threads(0); }
TEST(cuda_mempool_threads, lose_nothing_if_device_calls_fail) {
  for (const std::uint64_t every : {2u, 3u, 7u}) share_in_threads(every);
}

// A request that fails names the numbers of that moment, and a wrong free aborts, as without a mutex.
TEST(cuda_mempool_threads, get_the_errors_of_one_thread) {
  cuda_mempool<locked<caching_allocator<cuda_async, simulated_device>>> pool{
      simulated_device{simulated_device::options{.capacity = 4_MiB}}};
  EXPECT_EQ(pool.allocate_async(0, a), nullptr);
  void* const p = pool.allocate_async(3_MiB, a);
  EXPECT_EQ(pool.try_allocate_async(2_MiB, b), nullptr);
  try {
    (void)pool.allocate_async(2_MiB, b);
    FAIL();
  } catch (const out_of_memory& error) {
    EXPECT_EQ(error.at_failure().allocated, 3_MiB);
  }
  pool.free_async(nullptr, a);
  pool.free_async(p, a);
  EXPECT_DEATH(pool.free_async(p, a), "free_async: not the address of a live block");
}

}  // namespace
