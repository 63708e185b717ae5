// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <type_traits>

#include <gtest/gtest.h>

#include <tessera/policy/chunks.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

namespace {

using namespace tessera;

template <typename Eviction>
using pool_with = caching_allocator<with<power_of_two, Eviction>, simulated_device>;

TEST(evict_at_free, gives_larger_segments_back_at_once_and_keeps_the_others) {
  pool_with<evict_at_free<tunable(unlimited)>> pool(simulated_device{}, {.eviction = {.threshold = 1_MiB}});
  void* const kept = pool.allocate(1_MiB);
  void* const first = pool.allocate(1_MiB + 1);
  void* const second = pool.allocate(4_MiB);
  pool.deallocate(first);
  EXPECT_EQ(pool.current_usage().reserved, 5_MiB);
  pool.deallocate(kept);
  EXPECT_EQ(pool.current_usage().reserved, 5_MiB);
  pool.deallocate(second);
  EXPECT_EQ(pool.current_usage().reserved, 1_MiB);
  EXPECT_EQ(pool.current_usage().cached, 1_MiB);
}

TEST(evict_at_free, keeps_everything_where_no_size_is_given) {
  pool_with<evict_at_free<tunable(unlimited)>> pool;
  pool.deallocate(pool.allocate(1_GiB));
  EXPECT_EQ(pool.current_usage().cached, 1_GiB);
}

TEST(evict_at_free, gives_a_segment_back_once_the_last_stream_is_done_with_it) {
  pool_with<evict_at_free<1_MiB>> pool;
  void* const used = pool.allocate(4_MiB);
  ASSERT_TRUE(pool.record_stream(used, stream_id{7}));
  pool.provider().submit(stream_id{7}, 1'000'000'000);
  pool.deallocate(used);
  EXPECT_EQ(pool.current_usage().pending(), 4_MiB);
  pool.provider().advance(1'000'000'000);
  pool.deallocate(pool.allocate(512));
  EXPECT_EQ(pool.current_usage().reserved, 512u);
}
TEST(evict_never, releases_nothing) {
  const usage now{.cached = 3_MiB, .reserved = 10_MiB, .limit = 1_GiB};
  for (const eviction_trigger when :
       {eviction_trigger::before_growth, eviction_trigger::after_free, eviction_trigger::after_synchronize})
    EXPECT_EQ(evict_never::bytes_to_evict(when, now), 0u);
  EXPECT_FALSE(evict_never::is_candidate(1_GiB, now));
  EXPECT_FALSE(evict_never::should_evict({1_GiB, 7}));
}

TEST(evict_at_free, wants_what_is_cached_after_a_free_alone) {
  constexpr evict_at_free<> everything{};
  const usage now{.cached = 3_MiB, .reserved = 10_MiB, .limit = 1_GiB};
  EXPECT_EQ(everything.bytes_to_evict(eviction_trigger::after_free, now), 3_MiB);
  EXPECT_EQ(everything.bytes_to_evict(eviction_trigger::before_growth, now), 0u);
  EXPECT_EQ(everything.bytes_to_evict(eviction_trigger::after_synchronize, now), 0u);
  EXPECT_TRUE(everything.is_candidate(1, now) && everything.should_evict({}));
}

TEST(evict_at_free, wants_something_where_more_than_its_size_is_cached) {
  constexpr evict_at_free<4_MiB> eviction{};
  EXPECT_EQ(eviction.bytes_to_evict(eviction_trigger::after_free, {.cached = 4_MiB}), 0u);
  EXPECT_EQ(eviction.bytes_to_evict(eviction_trigger::after_free, {.cached = 5_MiB}), 5_MiB);
  EXPECT_EQ(eviction.bytes_to_evict(eviction_trigger::before_growth, {.cached = 5_MiB}), 0u);
  EXPECT_FALSE(eviction.is_candidate(4_MiB, {}));
  EXPECT_TRUE(eviction.is_candidate(4_MiB + 1, {}));
}

TEST(evict_idle_segments, distinguishes_both_triggers) {
  const usage now{.cached = 3_MiB, .reserved = 10_MiB, .limit = 1_GiB};
  const evict_idle_segments<> before{.before_growth = true}, after{.at_free = true};
  EXPECT_EQ(before.bytes_to_evict(eviction_trigger::before_growth, now), 3_MiB);
  EXPECT_EQ(before.bytes_to_evict(eviction_trigger::after_free, now), 0u);
  EXPECT_EQ(after.bytes_to_evict(eviction_trigger::after_free, now), 3_MiB);
  EXPECT_EQ(after.bytes_to_evict(eviction_trigger::before_growth, now), 0u);
  EXPECT_EQ(before.bytes_to_evict(eviction_trigger::after_synchronize, now), 0u);
  EXPECT_TRUE(before.is_candidate(1, now) && before.should_evict({}));
}

TEST(evict_at_free_above_schedule, considers_segments_larger_than_any_chunk) {
  constexpr evict_at_free_above_schedule<chunk_schedule{.first = 40_MiB + 512, .further = 5_MiB}> eviction{};
  EXPECT_FALSE(eviction.is_candidate(41_MiB, {.limit = 1_GiB}));
  EXPECT_TRUE(eviction.is_candidate(41_MiB + 1, {.limit = 1_GiB}));
  EXPECT_EQ(eviction.bytes_to_evict(eviction_trigger::after_free, {.cached = 41_MiB, .limit = 1_GiB}), 0u);
  EXPECT_EQ(eviction.bytes_to_evict(eviction_trigger::after_free, {.cached = 50_MiB, .limit = 1_GiB}),
            50_MiB);
  EXPECT_EQ(eviction.bytes_to_evict(eviction_trigger::before_growth, {.cached = 50_MiB, .limit = 1_GiB}), 0u);
  EXPECT_TRUE(eviction.should_evict({}));
}

TEST(evict_idle_above, releases_memory_above_the_threshold_before_growth) {
  evict_idle_above<> eviction{.threshold = percent(50)};
  usage now{.cached = 3_MiB, .reserved = 10_MiB, .limit = 16_MiB};
  EXPECT_EQ(eviction.bytes_to_evict(eviction_trigger::before_growth, now), 2_MiB);
  EXPECT_EQ(eviction.bytes_to_evict(eviction_trigger::after_free, now), 0u);
  EXPECT_EQ(eviction.bytes_to_evict(eviction_trigger::after_synchronize, now), 0u);
  now.reserved = 8_MiB;
  EXPECT_EQ(eviction.bytes_to_evict(eviction_trigger::before_growth, now), 0u);
  eviction.threshold = fraction{};
  EXPECT_EQ(eviction.bytes_to_evict(eviction_trigger::before_growth, now), 0u);
}

TEST(evict_idle_above, releases_segments_at_least_as_old_as_the_average) {
  constexpr evict_idle_above<> eviction{};
  EXPECT_FALSE(eviction.is_candidate(2_MiB, {}));
  EXPECT_TRUE(eviction.is_candidate(2_MiB + 1, {}));
  EXPECT_TRUE(eviction.should_evict({4_MiB, 5, 2, 10}));
  EXPECT_FALSE(eviction.should_evict({4_MiB, 4, 2, 10}));
  EXPECT_FALSE(eviction.should_evict({4_MiB, 4, 2, 9}));
}

static_assert(std::is_empty_v<evict_at_free<1_MiB>>);

}  // namespace
