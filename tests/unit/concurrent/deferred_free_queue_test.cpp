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
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

namespace {

using namespace tessera;
using torch = caching_allocator<pytorch<>, simulated_device>;

template <std::size_t Count>
constexpr std::array<bool, Count> chosen(const std::int64_t (&bytes)[Count], fraction share) {
  std::array<collectable, Count> all{};
  for (std::size_t i = 0; i < Count; ++i) all[i].bytes = bytes[i];
  const std::size_t count = choose_collected(all, share);
  std::array<bool, Count> is{};
  std::size_t found = 0;
  for (std::size_t i = 0; i < Count; ++i) found += is[i] = all[i].is_collected;
  return found == count ? is : std::array<bool, Count>{};
}

static_assert(chosen({5, 30, 50, 15}, percent(60)) == std::array{false, true, true, false});
static_assert(chosen({1, 100, 1, 1}, percent(50)) == std::array{false, true, false, false});
static_assert(chosen({10, 10, 10}, percent(1)) == std::array{false, false, false});
static_assert(chosen({10, 10, 10}, percent(0)) == std::array{false, false, false});
static_assert(chosen({10, 0, -10}, percent(100)) == std::array{true, true, true});
static_assert(chosen({10, 10, 10}, percent(50)) == std::array{true, true, false});
static_assert(chosen({-40, 30, 30}, percent(40)) == std::array{true, false, false});
static_assert(chosen({1, std::numeric_limits<std::int64_t>::min()}, percent(50)) == std::array{false, true});

TEST(choose_collected, agrees_with_sorting) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 2'000; ++round) {
    std::vector<collectable> all(random() % 20);
    for (collectable& v : all) {
      v.bytes = static_cast<std::int64_t>(random() % 50) - 10;
      v.is_collected = random() % 2 == 0;
    }
    const fraction share{random() % 1'000'000'000};
    std::vector<std::size_t> order(all.size());
    std::size_t total = 0;
    for (std::size_t i = 0; i < all.size(); ++i) {
      order[i] = i;
      total += static_cast<std::size_t>(std::abs(all[i].bytes));
    }
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return std::abs(all[a].bytes) > std::abs(all[b].bytes);
    });
    std::vector<bool> expected(all.size());
    std::size_t count = 0;
    for (std::size_t held = 0; count < order.size() && held < share.of(total); ++count) {
      expected[order[count]] = true;
      held += static_cast<std::size_t>(std::abs(all[order[count]].bytes));
    }
    EXPECT_EQ(choose_collected(all, share), count);
    for (std::size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i].is_collected, expected[i]) << i;
  }
}

TEST(collector, frees_at_once_without_a_threshold) {
  torch pool;
  collector<torch> garbage(pool);
  garbage.collect(pool.allocate(1_MiB), 1_MiB);
  EXPECT_EQ(pool.now().live, 0u);
  EXPECT_EQ(garbage.gathered(), 0u);
  garbage.collect(nullptr, 7);
  EXPECT_EQ(garbage.gathered(), 0u);
}

TEST(collector, gathers_up_to_its_threshold_and_then_frees_everything) {
  torch pool;
  collector<torch> garbage(pool, {.threshold = 10_MiB});
  garbage.collect(pool.allocate(6_MiB), 6_MiB);
  EXPECT_EQ(garbage.gathered(), 6_MiB);
  EXPECT_EQ(pool.now().live, 6_MiB);
  garbage.collect(pool.allocate(4_MiB - 512), 4_MiB - 512);
  EXPECT_GT(pool.now().live, 0u);
  garbage.collect(pool.allocate(512), 512);
  EXPECT_EQ(garbage.gathered(), 0u);
  EXPECT_EQ(pool.now().live, 0u);
}

TEST(collector, frees_at_the_end_what_it_never_frees_before) {
  torch pool;
  {
    collector<torch> garbage(pool, {.threshold = unlimited});
    for (int i = 0; i < 100; ++i) garbage.collect(pool.allocate(1_MiB), unlimited / 2);
    EXPECT_EQ(pool.now().live, 100_MiB);
    EXPECT_EQ(garbage.gathered(), unlimited);
    EXPECT_FALSE(garbage.is_waiting());
  }
  EXPECT_EQ(pool.now().live, 0u);
}

TEST(collector, frees_at_the_end_what_is_left) {
  torch pool;
  {
    collector<torch> garbage(pool, {.threshold = 1_GiB, .waits = true, .stream = {}});
    garbage.collect(pool.allocate(1_MiB), 1_MiB);
    garbage.flush();
    garbage.collect(pool.allocate(1_MiB), 1_MiB);
    pool.device().submit(stream_id{}, 1'000'000);
  }
  EXPECT_EQ(pool.now().live, 0u);
  EXPECT_EQ(pool.device().calls().record, pool.device().calls().discard);
}

TEST(collector, fast_it_frees_while_work_is_under_way) {
  torch pool;
  collector<torch> garbage(pool, {.stream = stream_id{3}});
  void* const p = pool.allocate(1_MiB, stream_id{3});
  pool.device().submit(stream_id{3}, 1'000'000'000);
  garbage.collect(p, 1_MiB);
  EXPECT_EQ(pool.now().live, 0u);
  EXPECT_EQ(pool.device().calls().record, 0u);
}

template <typename Pool>
std::uint64_t time_of(Pool& pool) {
  if constexpr (requires { pool.device(); }) {
    return pool.device().now_ns();
  } else {
    return pool.with_device([](auto& d) { return d.now_ns(); });
  }
}

template <typename Pool>
void waits_for_the_stream_without_holding_up_the_caller() {
  Pool pool;
  constexpr std::uint64_t long_time = 1'000'000'000;
  const auto with_device = [&](auto f) {
    if constexpr (requires { pool.device(); }) {
      f(pool.device());
    } else {
      pool.with_device(f);
    }
  };
  collector<Pool> garbage(pool, {.waits = true, .stream = stream_id{3}});
  void* const p = pool.allocate(1_MiB, stream_id{3});
  with_device([](auto& d) { d.submit(stream_id{3}, long_time); });
  garbage.collect(p, 1_MiB);
  EXPECT_TRUE(garbage.is_waiting());
  EXPECT_LT(time_of(pool), long_time);
  EXPECT_EQ(pool.now().live, 1_MiB);
  void* const second = pool.allocate(1_MiB, stream_id{3});
  EXPECT_NE(second, p);
  garbage.retire();
  EXPECT_EQ(pool.now().live, 2_MiB);
  with_device([](auto& d) { d.advance(long_time); });
  garbage.collect(second, 1_MiB);
  EXPECT_EQ(pool.now().live, 1_MiB);
  garbage.retire();
  EXPECT_EQ(pool.now().live, 0u);
  EXPECT_FALSE(garbage.is_waiting());
}
TEST(collector, waits_for_the_stream_without_holding_up_the_caller) {
  waits_for_the_stream_without_holding_up_the_caller<torch>();
  waits_for_the_stream_without_holding_up_the_caller<locked<pytorch<>, simulated_device>>();
  waits_for_the_stream_without_holding_up_the_caller<per_stream<pytorch<>, simulated_device>>();
}

TEST(collector, one_event_stands_for_all_that_is_freed_together) {
  torch pool;
  collector<torch> garbage(pool, {.threshold = 8_MiB, .waits = true});
  for (int i = 0; i < 16; ++i) garbage.collect(pool.allocate(1_MiB), 1_MiB);
  EXPECT_EQ(pool.device().calls().record, 2u);
  garbage.finish();
  EXPECT_EQ(pool.now().live, 0u);
}

TEST(collector, an_event_that_fails_is_tried_again) {
  torch pool;
  collector<torch> garbage(pool, {.waits = true});
  void* const p = pool.allocate(1_MiB);
  pool.device().submit(stream_id{}, 1'000'000);
  pool.device().fail_call(1);
  garbage.collect(p, 1_MiB);
  EXPECT_TRUE(garbage.is_waiting());
  pool.device().fail_call(1);
  garbage.retire();
  EXPECT_EQ(pool.now().live, 1_MiB);
  garbage.retire();
  EXPECT_EQ(pool.now().live, 1_MiB);
  pool.device().advance(2'000'000);
  garbage.retire();
  EXPECT_EQ(pool.now().live, 0u);
}

TEST(collector, waits_for_the_oldest_where_too_many_wait) {
  torch pool;
  collector<torch> garbage(pool, {.waits = true});
  std::vector<void*> blocks;
  for (int i = 0; i < 1'500; ++i) blocks.push_back(pool.allocate(512));
  pool.device().submit(stream_id{}, 1'000'000'000'000);
  for (void* p : blocks) garbage.collect(p, 512);
  EXPECT_LE(pool.statistics().all.allocation.current, 1'024);
  EXPECT_GE(pool.device().now_ns(), 1'000'000'000'000u);
  garbage.finish();
  EXPECT_EQ(pool.now().live, 0u);
}

/// A device that has no events, but lets one wait.
class synchronous : public simulated_device {
 public:
  int waits = 0;
  void record() = delete;
  bool synchronize(stream_id stream) noexcept { return ++waits, simulated_device::synchronize(stream); }
};
static_assert(!event_provider<synchronous>);

TEST(collector, holds_the_caller_up_where_there_are_no_events) {
  using pool_type = caching_allocator<with<pytorch<>, reuse_ignoring_streams>, synchronous>;
  pool_type pool;
  collector<pool_type> garbage(pool, {.waits = true, .stream = stream_id{3}});
  void* const p = pool.allocate(1_MiB);
  pool.device().submit(stream_id{3}, 1'000'000'000);
  garbage.collect(p, 1_MiB);
  EXPECT_EQ(pool.now().live, 0u);
  EXPECT_EQ(pool.device().waits, 1);
  EXPECT_GE(pool.device().now_ns(), 1'000'000'000u);
}

}  // namespace
