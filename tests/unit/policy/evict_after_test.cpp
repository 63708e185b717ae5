// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <type_traits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/detail/blocks/introspection.hpp>
#include <tessera/extension/private_pools.hpp>
#include <tessera/extension/sleep_mode.hpp>
#include <tessera/policy/evict_after.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

#include "extensions.hpp"

namespace {

using namespace tessera;

/// A clock that the tests advance.
struct manual_clock {
  static inline std::uint64_t ticks = 0;
  static inline std::size_t reads = 0;
  [[nodiscard]] static std::uint64_t now() noexcept {
    ++reads;
    return ticks;
  }
};

using step = evict_after<tunable<std::uint64_t>{200}, decay_curve::step, manual_clock>;
using smooth = evict_after<tunable<std::uint64_t>{200}, decay_curve::smooth, manual_clock>;

template <typename Recipe, typename Eviction>
using allocator_of = caching_allocator<with<Recipe, Eviction>, simulated_device, extension::private_pools,
                                       extension::sleep_mode>;

using expandable = pytorch<"expandable_segments:True">;

template <typename Recipe>
class evict_after_in : public testing::Test {
 protected:
  void SetUp() override { manual_clock::ticks = 1'000'000; }
};
using ways_to_grow = testing::Types<pytorch<>, expandable, stitched>;
TYPED_TEST_SUITE(evict_after_in, ways_to_grow);

/// Idle memory stays for 199 ticks, and goes in the next one.
void expect_to_go_in_200_ticks(auto& pool, std::size_t bytes) {
  manual_clock::ticks += 199;
  pool.evict_idle();
  EXPECT_EQ(pool.current_usage().reserved, bytes);
  manual_clock::ticks += 1;
  pool.evict_idle();
  EXPECT_EQ(pool.current_usage().reserved, 0u);
}

TYPED_TEST(evict_after_in, nothing_goes_before_the_time_and_all_after_it) {
  allocator_of<TypeParam, step> pool;
  void* const first = pool.allocate(80_MiB);
  void* const between = pool.allocate(80_MiB, stream_id{1});
  void* const second = pool.allocate(80_MiB, stream_id{2});
  pool.deallocate(first);
  manual_clock::ticks += 150;
  pool.deallocate(second);
  manual_clock::ticks += 49;
  pool.evict_idle();
  EXPECT_EQ(pool.current_usage().reserved, 240_MiB);
  manual_clock::ticks += 1;
  pool.evict_idle();
  EXPECT_EQ(pool.current_usage().reserved, 160_MiB);
  manual_clock::ticks += 149;
  pool.evict_idle();
  EXPECT_EQ(pool.current_usage().reserved, 160_MiB);
  manual_clock::ticks += 1;
  pool.evict_idle();
  EXPECT_EQ(pool.current_usage().reserved, 80_MiB);
  pool.deallocate(between);
  EXPECT_EQ(pool.audit(), nullptr);
}

TYPED_TEST(evict_after_in, a_reused_block_is_young_again) {
  allocator_of<TypeParam, step> pool;
  pool.deallocate(pool.allocate(80_MiB));
  manual_clock::ticks += 199;
  pool.deallocate(pool.allocate(80_MiB));
  expect_to_go_in_200_ticks(pool, 80_MiB);
}

TYPED_TEST(evict_after_in, no_other_event_releases) {
  allocator_of<TypeParam, step> pool;
  pool.deallocate(pool.allocate(80_MiB));
  manual_clock::ticks += 1000;
  EXPECT_FALSE(pool.process_events());
  pool.trim_without_waiting(unlimited);
  pool.deallocate(pool.allocate(512, stream_id{1}));
  EXPECT_GE(pool.current_usage().reserved, 80_MiB);
}

TYPED_TEST(evict_after_in, a_time_may_change_and_unlimited_keeps_everything) {
  allocator_of<TypeParam, step> pool;
  pool.policies().eviction.time = unlimited;
  pool.deallocate(pool.allocate(80_MiB));
  manual_clock::ticks += 1'000'000'000;
  pool.evict_idle();
  EXPECT_EQ(pool.current_usage().reserved, 80_MiB);
  pool.policies().eviction.time = 1'000'000'000;
  pool.evict_idle();
  EXPECT_EQ(pool.current_usage().reserved, 0u);
}

template <typename Pool>
void expect_to_go_at_once() {
  Pool pool;
  pool.policies().eviction.time = 0;
  pool.deallocate(pool.allocate(80_MiB));
  pool.evict_idle();
  EXPECT_EQ(pool.current_usage().reserved, 0u);
}
TYPED_TEST(evict_after_in, a_time_of_0_releases_all_at_each_call) {
  expect_to_go_at_once<allocator_of<TypeParam, step>>();
  expect_to_go_at_once<allocator_of<TypeParam, smooth>>();
}

TYPED_TEST(evict_after_in, ages_survive_the_wrap_of_32_bits) {
  manual_clock::ticks = (std::uint64_t{1} << 32) - 100;
  allocator_of<TypeParam, step> pool;
  pool.deallocate(pool.allocate(80_MiB));
  expect_to_go_in_200_ticks(pool, 80_MiB);
}

TYPED_TEST(evict_after_in, restart_ages_restarts_the_time) {
  allocator_of<TypeParam, step> pool;
  pool.deallocate(pool.allocate(80_MiB));
  manual_clock::ticks += 199;
  pool.reset_decay();
  expect_to_go_in_200_ticks(pool, 80_MiB);
}

TYPED_TEST(evict_after_in, completed_frees_are_processed_first_and_others_are_not_waited_for) {
  allocator_of<TypeParam, step> pool;
  pool.policies().eviction.time = 0;
  void* const used = pool.allocate(80_MiB);
  ASSERT_TRUE(pool.record_stream(used, stream_id{7}));
  pool.provider().submit(stream_id{7}, 1'000'000'000);
  pool.deallocate(used);
  pool.evict_idle();
  EXPECT_EQ(pool.current_usage().pending(), 80_MiB);
  pool.provider().advance(1'000'000'000);
  pool.evict_idle();
  EXPECT_EQ(pool.current_usage().reserved, 0u);
}

TYPED_TEST(evict_after_in, an_open_scope_keeps_everything) {
  allocator_of<TypeParam, step> pool;
  pool.deallocate(pool.allocate(80_MiB));
  manual_clock::ticks += 1000;
  {
    extension::private_pool graph(pool);
    {
      const extension::pool_scope scope(graph, stream_id{9}, extension::scope_kind::capture);
      pool.evict_idle();
      EXPECT_EQ(pool.current_usage().reserved, 80_MiB);
      pool.deallocate(pool.allocate(80_MiB, stream_id{9}));
    }
    manual_clock::ticks += 1000;
    pool.evict_idle();
    EXPECT_EQ(pool.current_usage().reserved, 80_MiB) << "a pool in use keeps its memory";
  }
  pool.trim();
  EXPECT_EQ(pool.current_usage().reserved, 0u);
}

TYPED_TEST(evict_after_in, memory_that_sleeps_stays_asleep) {
  using pool_type = allocator_of<TypeParam, step>;
  if constexpr (pool_type::has_ranges) {
    pool_type pool;
    void* const live = pool.allocate(80_MiB);
    pool.deallocate(pool.allocate(80_MiB, stream_id{1}));
    ASSERT_TRUE(sleep_mode_of(pool).sleep(extension::sleep_contents::discard));
    manual_clock::ticks += 1000;
    pool.evict_idle();
    EXPECT_EQ(pool.audit(), nullptr);
    EXPECT_EQ(pool.provider().used(), 0u);
    ASSERT_TRUE(sleep_mode_of(pool).wake());
    pool.deallocate(live);
    manual_clock::ticks += 1000;
    pool.evict_idle();
    EXPECT_EQ(pool.current_usage().reserved, 0u);
    EXPECT_EQ(pool.audit(), nullptr);
  }
}

/// The share of bytes that jemalloc's curve lets stay.
double share_after(double t) { return t >= 1 ? 0 : 1 - t * t * t * (10 - 15 * t + 6 * t * t); }

TYPED_TEST(evict_after_in, smooth_follows_the_curve_within_one_segment) {
  constexpr std::size_t count = 50, size = 40_MiB;
  for (const std::uint64_t time : {std::uint64_t{200}, std::uint64_t{150}, std::uint64_t{10'000}}) {
    for (const std::uint64_t every : {std::uint64_t{1}, std::uint64_t{17}}) {
      allocator_of<TypeParam, smooth> pool(simulated_device({.capacity = 8_GiB}));
      pool.policies().eviction.time = time;
      std::vector<void*> blocks;
      for (std::size_t i = 0; i < count; ++i) blocks.push_back(pool.allocate(size, stream_id{i + 1}));
      for (void* p : blocks) pool.deallocate(p);
      const std::size_t all = pool.current_usage().reserved;
      ASSERT_EQ(all, count * size);
      const std::uint64_t start = manual_clock::ticks;
      for (std::uint64_t t = 0; t <= time + every; t += every * time / 200 + 1) {
        manual_clock::ticks = start + t;
        pool.evict_idle();
        const double t_of_1 = static_cast<double>(t) / static_cast<double>(time);
        const double wanted = share_after(t_of_1) * static_cast<double>(all);
        const double slack = time > 200 ? 0.01 * static_cast<double>(all) : 1;  // half an epoch
        EXPECT_NEAR(static_cast<double>(pool.current_usage().reserved), wanted, slack + size)
            << t << " of " << time;
        EXPECT_LE(static_cast<double>(pool.current_usage().reserved), wanted + slack);
      }
      manual_clock::ticks = start + time;
      pool.evict_idle();
      EXPECT_EQ(pool.current_usage().reserved, 0u);
      EXPECT_EQ(pool.audit(), nullptr);
    }
  }
}

TYPED_TEST(evict_after_in, smooth_releases_the_oldest_first) {
  constexpr std::size_t count = 20, size = 40_MiB;
  allocator_of<TypeParam, smooth> pool;
  std::vector<void*> blocks;
  for (std::size_t i = 0; i < count; ++i) blocks.push_back(pool.allocate(size, stream_id{i + 1}));
  for (void* p : blocks) {
    pool.deallocate(p);
    manual_clock::ticks += 2;
  }
  for (int t = 0; t < 240; ++t) {
    pool.evict_idle();
    manual_clock::ticks += 1;
    std::uint64_t youngest_stream = 0;
    std::size_t left = 0;
    tessera::detail::core_access::manager(pool).for_each_idle([&](const detail::block& b) {
      if (youngest_stream == 0 || b.list->key.handle < youngest_stream) youngest_stream = b.list->key.handle;
      ++left;
      return false;
    });
    if (left > 0) {
      EXPECT_EQ(youngest_stream, count - left + 1);
    }
  }
  EXPECT_EQ(pool.current_usage().reserved, 0u);
}

TYPED_TEST(evict_after_in, smooth_counts_memory_that_is_used_again_as_new) {
  allocator_of<TypeParam, smooth> pool;
  for (int phase = 0; phase < 20; ++phase) {
    std::vector<void*> blocks;
    for (std::size_t i = 0; i < 10; ++i) blocks.push_back(pool.allocate(80_MiB, stream_id{i + 1}));
    for (void* p : blocks) pool.deallocate(p);
    manual_clock::ticks += 10;
    pool.evict_idle();
    EXPECT_GE(pool.current_usage().reserved, 720_MiB);
  }
  manual_clock::ticks += 190;
  pool.evict_idle();
  EXPECT_EQ(pool.current_usage().reserved, 0u);
}

TYPED_TEST(evict_after_in, smooth_stays_sound_in_a_random_program) {
  allocator_of<TypeParam, smooth> pool;
  std::vector<void*> live;
  std::uint32_t random = 1;
  for (int i = 0; i < 20'000; ++i) {
    random = random * 1664525 + 1013904223;
    if (live.size() < 40 && (random >> 30) != 0) {
      live.push_back(pool.allocate(1 + (random >> 8) % 8_MiB, stream_id{(random >> 5) % 3}));
    } else if (!live.empty()) {
      std::swap(live[(random >> 8) % live.size()], live.back());
      pool.deallocate(live.back());
      live.pop_back();
    }
    if ((random >> 10) % 8 == 0) {
      manual_clock::ticks += (random >> 20) % 32;
      pool.evict_idle();
      ASSERT_EQ(pool.audit(), nullptr);
    }
  }
  for (void* p : live) pool.deallocate(p);
  manual_clock::ticks += 200;
  pool.evict_idle();
  EXPECT_EQ(pool.current_usage().reserved, 0u);
  EXPECT_EQ(pool.provider().used(), 0u);
}

/// A small block that is freed beside a large free block now and then.
template <typename Recipe>
void keep_large_block_only_for_its_time() {
  allocator_of<Recipe, step> pool;
  pool.policies().eviction.time = 1000;
  pool.deallocate(pool.allocate(1000_MiB));
  std::uint64_t t = 0;
  for (; t < 1500 && pool.current_usage().reserved > 0; t += 50) {
    pool.deallocate(pool.allocate(20_MiB));
    manual_clock::ticks += 50;
    pool.evict_idle();
  }
  EXPECT_GE(t, 1000u);
  EXPECT_LT(t, 1500u);
}
TEST(evict_after, a_small_block_does_not_keep_a_large_one_in_a_range) {
  keep_large_block_only_for_its_time<expandable>();
  keep_large_block_only_for_its_time<stitched>();
}

TEST(evict_after, many_small_blocks_keep_a_large_one_in_a_range_no_longer_than_few) {
  allocator_of<expandable, step> pool;
  pool.policies().eviction.time = 100;
  pool.deallocate(pool.allocate(1000_MiB));
  std::uint64_t t = 0;
  for (; t < 1000 && pool.current_usage().reserved > 0; ++t) {
    for (int i = 0; i < 5; ++i) pool.deallocate(pool.allocate(1_MiB + 512));
    manual_clock::ticks += 1;
    pool.evict_idle();
  }
  EXPECT_LT(t, 1000u);
}

TEST(evict_after, coalesced_blocks_of_a_range_have_the_mean_age_of_their_bytes) {
  allocator_of<expandable, step> pool;
  const auto age = [&pool] {
    auto& manager = tessera::detail::core_access::manager(pool);
    std::uint64_t found = 0;
    manager.for_each_idle([&](const detail::block& b) {
      found = manager.age(b);
      return false;
    });
    return found;
  };
  void* const low = pool.allocate(20_MiB);
  void* const middle = pool.allocate(60_MiB);
  void* const high = pool.allocate(20_MiB);
  pool.deallocate(low);
  manual_clock::ticks += 100;
  pool.deallocate(high);
  manual_clock::ticks += 100;
  pool.deallocate(middle);
  EXPECT_EQ(age(), (20 * 200 + 20 * 100) / 100u);
  manual_clock::ticks += 30;
  EXPECT_EQ(age(), 90u);
  pool.reset_decay();
  manual_clock::ticks += 10;
  EXPECT_EQ(age(), 10u);
}

TYPED_TEST(evict_after_in, a_device_that_fails_loses_nothing) {
  for (std::uint64_t every = 1; every < 6; ++every) {
    allocator_of<TypeParam, smooth> pool;
    for (std::uint64_t i = 1; i <= 5; ++i) pool.deallocate(pool.allocate(80_MiB, stream_id{i}));
    pool.provider().fail_every(every);
    for (int i = 0; i < 25; ++i) {
      manual_clock::ticks += 10;
      pool.evict_idle();
      ASSERT_EQ(pool.audit(), nullptr);
    }
    pool.provider().fail_every(0);
    pool.evict_idle();
    EXPECT_EQ(pool.current_usage().reserved, 0u);
  }
}

TEST(evict_after, reads_the_clock_only_when_a_segment_becomes_idle) {
  allocator_of<pytorch<>, step> pool;
  void* const kept = pool.allocate(2_MiB);
  manual_clock::reads = 0;
  for (int i = 0; i < 10; ++i) pool.deallocate(pool.allocate(2_MiB));
  EXPECT_EQ(manual_clock::reads, 0u);
  pool.deallocate(kept);
  EXPECT_EQ(manual_clock::reads, 1u);
}

TEST(evict_after, decides_by_age_and_excess) {
  constexpr evict_after<200> eviction{};
  const usage now{.cached = 3_MiB, .reserved = 10_MiB, .limit = 1_GiB};
  EXPECT_EQ(eviction.bytes_to_evict(eviction_trigger::on_request, now), 3_MiB);
  for (const eviction_trigger when :
       {eviction_trigger::before_growth, eviction_trigger::after_free, eviction_trigger::after_synchronize})
    EXPECT_EQ(eviction.bytes_to_evict(when, now), 0u);
  EXPECT_FALSE(eviction.is_candidate(0, now));
  EXPECT_TRUE(eviction.is_candidate(1, now));
  EXPECT_TRUE(eviction.should_evict({.bytes = 1, .age = 200, .max_age = 300}));
  EXPECT_FALSE(eviction.should_evict({.bytes = 1, .age = 199, .max_age = 300}));
  EXPECT_FALSE(eviction.should_evict({.bytes = 1, .age = 199, .max_age = 300, .excess = 1}));
  EXPECT_TRUE(eviction.should_evict({.bytes = 1, .age = 199, .max_age = 199, .excess = 1}));
}

TEST(evict_after, keeps_the_bytes_of_the_curve) {
  constexpr evict_after<1000, decay_curve::smooth> eviction{};
  EXPECT_EQ(eviction.bytes_to_keep(1_GiB, 0), 1_GiB);
  EXPECT_EQ(eviction.bytes_to_keep(1_GiB, 500), 512_MiB);
  EXPECT_EQ(eviction.bytes_to_keep(1_GiB, 1000), 0u);
  for (std::uint64_t t = 0; t <= 1000; t += 50)
    EXPECT_NEAR(static_cast<double>(eviction.bytes_to_keep(1_GiB, t)),
                share_after(static_cast<double>(t) / 1000) * static_cast<double>(1_GiB), 2.0);
}

TEST(steady_milliseconds, advance) {
  const std::uint64_t before = steady_milliseconds::now();
  std::uint64_t after = before;
  while (after < before + 20) after = steady_milliseconds::now();
  EXPECT_GE(after, before + 20);
}

static_assert(std::is_empty_v<evict_after<200>>);
static_assert(sizeof(allocator_of<pytorch<>, evict_never>) ==
              sizeof(allocator_of<pytorch<>, evict_after<200>>));

}  // namespace
