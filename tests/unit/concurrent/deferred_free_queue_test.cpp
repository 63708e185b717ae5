// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/concurrent/deferred_free_queue.hpp>
#include <tessera/concurrent/locked.hpp>
#include <tessera/concurrent/per_stream.hpp>
#include <tessera/extension/private_pools.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

namespace {

using namespace tessera;
using torch = caching_allocator<pytorch<>, simulated_device>;

TEST(deferred_free_queue, frees_at_once_without_a_threshold) {
  torch pool;
  deferred_free_queue<torch> garbage(pool);
  garbage.push(pool.allocate(1_MiB), 1_MiB);
  EXPECT_EQ(pool.current_usage().allocated, 0u);
  EXPECT_EQ(garbage.queued_bytes(), 0u);
  garbage.push(nullptr, 7);
  EXPECT_EQ(garbage.queued_bytes(), 0u);
}

TEST(deferred_free_queue, gathers_up_to_its_threshold_and_then_frees_everything) {
  torch pool;
  deferred_free_queue<torch> garbage(pool, {.threshold = 10_MiB});
  garbage.push(pool.allocate(6_MiB), 6_MiB);
  EXPECT_EQ(garbage.queued_bytes(), 6_MiB);
  EXPECT_EQ(pool.current_usage().allocated, 6_MiB);
  garbage.push(pool.allocate(4_MiB - 512), 4_MiB - 512);
  EXPECT_GT(pool.current_usage().allocated, 0u);
  garbage.push(pool.allocate(512), 512);
  EXPECT_EQ(garbage.queued_bytes(), 0u);
  EXPECT_EQ(pool.current_usage().allocated, 0u);
}

TEST(deferred_free_queue, frees_at_the_end_what_it_never_frees_before) {
  torch pool;
  {
    deferred_free_queue<torch> garbage(pool, {.threshold = unlimited});
    for (int i = 0; i < 100; ++i) garbage.push(pool.allocate(1_MiB), unlimited / 2);
    EXPECT_EQ(pool.current_usage().allocated, 100_MiB);
    EXPECT_EQ(garbage.queued_bytes(), unlimited);
    EXPECT_FALSE(garbage.has_pending());
  }
  EXPECT_EQ(pool.current_usage().allocated, 0u);
}

TEST(deferred_free_queue, frees_at_the_end_what_is_left) {
  torch pool;
  {
    deferred_free_queue<torch> garbage(pool, {.threshold = 1_GiB, .waits = true, .stream = {}});
    garbage.push(pool.allocate(1_MiB), 1_MiB);
    garbage.flush();
    garbage.push(pool.allocate(1_MiB), 1_MiB);
    pool.provider().submit(stream_id{}, 1'000'000);
  }
  EXPECT_EQ(pool.current_usage().allocated, 0u);
  EXPECT_EQ(pool.provider().calls().record, pool.provider().calls().discard);
}

TEST(deferred_free_queue, fast_it_frees_while_work_is_under_way) {
  torch pool;
  deferred_free_queue<torch> garbage(pool, {.stream = stream_id{3}});
  void* const p = pool.allocate(1_MiB, stream_id{3});
  pool.provider().submit(stream_id{3}, 1'000'000'000);
  garbage.push(p, 1_MiB);
  EXPECT_EQ(pool.current_usage().allocated, 0u);
  EXPECT_EQ(pool.provider().calls().record, 0u);
}

template <typename Pool>
std::uint64_t time_of(Pool& pool) {
  if constexpr (requires { pool.provider(); }) {
    return pool.provider().now_ns();
  } else {
    return pool.visit_provider([](auto& d) { return d.now_ns(); });
  }
}

template <typename Pool>
void waits_for_the_stream_without_holding_up_the_caller() {
  Pool pool;
  constexpr std::uint64_t long_time = 1'000'000'000;
  const auto visit_provider = [&](auto f) {
    if constexpr (requires { pool.provider(); }) {
      f(pool.provider());
    } else {
      pool.visit_provider(f);
    }
  };
  deferred_free_queue<Pool> garbage(pool, {.waits = true, .stream = stream_id{3}});
  void* const p = pool.allocate(1_MiB, stream_id{3});
  visit_provider([](auto& d) { d.submit(stream_id{3}, long_time); });
  garbage.push(p, 1_MiB);
  EXPECT_TRUE(garbage.has_pending());
  EXPECT_LT(time_of(pool), long_time);
  EXPECT_EQ(pool.current_usage().allocated, 1_MiB);
  void* const second = pool.allocate(1_MiB, stream_id{3});
  EXPECT_NE(second, p);
  garbage.poll();
  EXPECT_EQ(pool.current_usage().allocated, 2_MiB);
  visit_provider([](auto& d) { d.advance(long_time); });
  garbage.push(second, 1_MiB);
  EXPECT_EQ(pool.current_usage().allocated, 1_MiB);
  garbage.poll();
  EXPECT_EQ(pool.current_usage().allocated, 0u);
  EXPECT_FALSE(garbage.has_pending());
}
TEST(deferred_free_queue, waits_for_the_stream_without_holding_up_the_caller) {
  waits_for_the_stream_without_holding_up_the_caller<torch>();
  waits_for_the_stream_without_holding_up_the_caller<
      locked<caching_allocator<pytorch<>, simulated_device>>>();
  waits_for_the_stream_without_holding_up_the_caller<
      per_stream<caching_allocator<pytorch<>, simulated_device>>>();
}

TEST(deferred_free_queue, one_event_stands_for_all_that_is_freed_together) {
  torch pool;
  deferred_free_queue<torch> garbage(pool, {.threshold = 8_MiB, .waits = true});
  for (int i = 0; i < 16; ++i) garbage.push(pool.allocate(1_MiB), 1_MiB);
  EXPECT_EQ(pool.provider().calls().record, 2u);
  garbage.finish();
  EXPECT_EQ(pool.current_usage().allocated, 0u);
}

TEST(deferred_free_queue, an_event_that_fails_is_tried_again) {
  torch pool;
  deferred_free_queue<torch> garbage(pool, {.waits = true});
  void* const p = pool.allocate(1_MiB);
  pool.provider().submit(stream_id{}, 1'000'000);
  pool.provider().fail_call(1);
  garbage.push(p, 1_MiB);
  EXPECT_TRUE(garbage.has_pending());
  pool.provider().fail_call(1);
  garbage.poll();
  EXPECT_EQ(pool.current_usage().allocated, 1_MiB);
  garbage.poll();
  EXPECT_EQ(pool.current_usage().allocated, 1_MiB);
  pool.provider().advance(2'000'000);
  garbage.poll();
  EXPECT_EQ(pool.current_usage().allocated, 0u);
}

TEST(deferred_free_queue, waits_for_the_oldest_if_too_many_wait) {
  torch pool;
  deferred_free_queue<torch> garbage(pool, {.waits = true});
  std::vector<void*> blocks;
  for (int i = 0; i < 1'500; ++i) blocks.push_back(pool.allocate(512));
  pool.provider().submit(stream_id{}, 1'000'000'000'000);
  for (void* p : blocks) garbage.push(p, 512);
  EXPECT_LE(pool.statistics().all.allocation.current, 1'024);
  EXPECT_GE(pool.provider().now_ns(), 1'000'000'000'000u);
  garbage.finish();
  EXPECT_EQ(pool.current_usage().allocated, 0u);
}

/// The number of calls that a capture forbids.
template <typename Pool>
std::uint64_t forbidden_calls(Pool& pool) {
  return pool.visit_provider([](auto& d) {
    const auto& made = d.calls();
    return made.record + made.query + made.wait + made.synchronize;
  });
}
template <typename Pool>
void queues_during_a_capture() {
  constexpr std::uint64_t long_time = 1'000'000'000;
  Pool pool;
  auto pools = pool.template get<extension::private_pools>();
  const pool_id graph = pools.create();
  std::uint64_t calls = 0;
  {
    deferred_free_queue<Pool> garbage(pool, {.waits = true, .stream = stream_id{3}});
    const auto fill = [&] {
      void* const early = pool.allocate(1_MiB, stream_id{4});
      void* const late = pool.allocate(1_MiB, stream_id{4});
      pool.visit_provider([](auto& d) { d.submit(stream_id{3}, long_time); });
      garbage.push(early, 1_MiB);
      EXPECT_EQ(garbage.queued_bytes(), 0u);
      EXPECT_TRUE(pools.open(graph, stream_id{9}, extension::scope_kind::capture));
      calls = forbidden_calls(pool);
      garbage.push(late, 1_MiB);
      garbage.flush();
      garbage.poll();
      EXPECT_EQ(garbage.queued_bytes(), 1_MiB);
      EXPECT_TRUE(garbage.has_pending());
      EXPECT_EQ(forbidden_calls(pool), calls);
    };
    fill();
    EXPECT_TRUE(pools.close(graph));
    garbage.poll();
    EXPECT_EQ(garbage.queued_bytes(), 0u);
    EXPECT_EQ(pool.current_usage().allocated, 2_MiB) << "the work has not completed";
    pool.visit_provider([](auto& d) { d.advance(long_time); });
    garbage.poll();
    EXPECT_EQ(pool.current_usage().allocated, 0u);
    fill();
    EXPECT_TRUE(pools.close(graph));
  }
  EXPECT_EQ(pool.current_usage().allocated, 0u) << "its end waits for both";
  EXPECT_EQ(pool.audit(), nullptr);
}
TEST(deferred_free_queue, queues_during_a_capture) {
  using allocator = caching_allocator<pytorch<>, simulated_device, extension::private_pools>;
  queues_during_a_capture<allocator>();
  queues_during_a_capture<locked<allocator>>();
  queues_during_a_capture<per_stream<allocator>>();
}

/// A device without events on which one can wait for a stream.
class synchronous : public simulated_device {
 public:
  int waits = 0;
  void record() = delete;
  bool synchronize(stream_id stream) noexcept { return ++waits, simulated_device::synchronize(stream); }
};
static_assert(!event_provider<synchronous>);

TEST(deferred_free_queue, blocks_the_caller_without_events) {
  using pool_type = caching_allocator<with<pytorch<>, reuse_immediately>, synchronous>;
  pool_type pool;
  deferred_free_queue<pool_type> garbage(pool, {.waits = true, .stream = stream_id{3}});
  void* const p = pool.allocate(1_MiB);
  pool.provider().submit(stream_id{3}, 1'000'000'000);
  garbage.push(p, 1_MiB);
  EXPECT_EQ(pool.current_usage().allocated, 0u);
  EXPECT_EQ(pool.provider().waits, 1);
  EXPECT_GE(pool.provider().now_ns(), 1'000'000'000u);
}

}  // namespace
