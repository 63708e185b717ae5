// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/policy/chunks.hpp>
#include <tessera/policy/evict_above.hpp>
#include <tessera/provider/host_pinned.hpp>
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

TEST(evict_above, keeps_at_most_its_cap_and_the_youngest) {
  pool_with<evict_above<tunable(std::size_t{2_GiB})>> pool(simulated_device{}, {.eviction = {.cap = 4_MiB}});
  std::vector<void*> blocks;
  for (int i = 0; i < 6; ++i) blocks.push_back(pool.allocate(1_MiB));
  for (void* const p : blocks) {
    pool.deallocate(p);
    EXPECT_LE(pool.current_usage().cached, 4_MiB);
  }
  EXPECT_EQ(pool.current_usage().reserved, 4_MiB);
  pool.deallocate(pool.allocate(8_MiB));  // more than the cap by itself
  EXPECT_LE(pool.current_usage().cached, 4_MiB);
}

TEST(evict_above, takes_a_share_of_the_limit) {
  constexpr evict_above<percent(10)> eviction{};
  constexpr usage now{.cached = 3_GiB, .reserved = 10_GiB, .limit = 20_GiB};
  EXPECT_EQ(eviction.bytes_to_evict(eviction_trigger::after_free, now), 1_GiB);
  EXPECT_EQ(eviction.bytes_to_evict(eviction_trigger::on_request, now), 1_GiB);
  EXPECT_EQ(eviction.bytes_to_evict(eviction_trigger::before_growth, now), 0u);
  EXPECT_TRUE(eviction.should_evict({.age = 7, .candidates = 2, .total_age = 10, .remaining = 1}));
  EXPECT_FALSE(eviction.should_evict({.age = 4, .candidates = 2, .total_age = 10, .remaining = 1}));
  EXPECT_FALSE(eviction.should_evict({.age = 7, .candidates = 2, .total_age = 10, .remaining = 0}));
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

/// Reads the virtual time of a simulated device.
struct device_time {
  [[nodiscard]] static std::uint64_t now(const simulated_device& device) noexcept { return device.now_ns(); }
};

/// Releases idle segments on request, the least valuable first, until at most `keep` bytes are reserved. Segments of
/// more bytes for each use are worth less.
struct evict_least_used {
  static constexpr bool counts_reuses = true;
  using call_clock = device_time;
  std::size_t keep = 0;
  std::vector<idle_segment>* seen = nullptr;  // where the segments are noted that the policy was asked about

  [[nodiscard]] std::size_t bytes_to_evict(eviction_trigger trigger, const usage& now) const noexcept {
    return trigger == eviction_trigger::on_request && now.reserved > keep ? now.reserved - keep : 0;
  }
  [[nodiscard]] static bool is_candidate(std::size_t, const usage&) noexcept { return true; }
  [[nodiscard]] static double value(const idle_segment& s) noexcept {
    return static_cast<double>(s.reuses + 1) / static_cast<double>(s.bytes);
  }
  [[nodiscard]] bool should_evict(const idle_segment& s) const noexcept {
    if (seen != nullptr) seen->push_back(s);
    return s.remaining > 0 && s.value <= s.min_value;
  }
  bool operator==(const evict_least_used&) const = default;
};

struct ranked_segments : testing::Test {
  caching_allocator<with<power_of_two, evict_least_used>, simulated_device> pool;
  std::vector<idle_segment> seen;

  void use(std::size_t bytes, int times, stream_id stream = {}) {
    for (int i = 0; i < times; ++i) pool.deallocate(pool.allocate(bytes, stream));
  }
};

TEST_F(ranked_segments, go_back_from_the_least_valuable_until_enough_is_released) {
  use(8_MiB, 16);   // 2 uses for each MiB
  use(4_MiB, 1);    // 1/4
  use(16_MiB, 16);  // 1
  pool.policies().eviction.keep = 27_MiB;
  pool.evict_idle();
  EXPECT_EQ(pool.current_usage().reserved, 24_MiB);  // without the 4 MiB
  pool.policies().eviction.keep = 9_MiB;
  pool.evict_idle();
  EXPECT_EQ(pool.current_usage().reserved, 8_MiB);
  pool.policies().eviction.keep = 8_MiB;
  pool.evict_idle();
  EXPECT_EQ(pool.current_usage().reserved, 8_MiB);
  EXPECT_EQ(pool.audit(), nullptr);
}

TEST_F(ranked_segments, show_their_reuses_stream_pool_and_the_time_of_their_calls) {
  const std::uint64_t start = pool.provider().now_ns();
  use(8_MiB, 3, stream_id{5});
  const std::uint64_t took = pool.provider().now_ns() - start;
  pool.policies().eviction.seen = &seen;
  pool.policies().eviction.keep = 7_MiB;
  pool.evict_idle();
  ASSERT_EQ(seen.size(), 1u);
  EXPECT_EQ(seen[0].bytes, 8_MiB);
  EXPECT_EQ(seen[0].reuses, 2u);
  EXPECT_EQ(seen[0].stream, stream_id{5});
  EXPECT_EQ(seen[0].pool, 0u);
  EXPECT_EQ(seen[0].acquire_ticks, took);
  EXPECT_GT(took, 0u);
  EXPECT_EQ(seen[0].release_ticks, 0u);  // none was released yet
  EXPECT_EQ(seen[0].candidates, 1u);

  const std::uint64_t released = pool.provider().now_ns();
  pool.policies().eviction.seen = nullptr;
  use(2_MiB, 1);
  const std::uint64_t acquired = pool.provider().now_ns();
  pool.trim();
  const std::uint64_t second = pool.provider().now_ns() - acquired;
  const std::uint64_t first = released - start - took;
  use(2_MiB, 1);
  pool.policies().eviction.seen = &seen;
  pool.policies().eviction.keep = 0;
  pool.evict_idle();
  EXPECT_EQ(seen.back().release_ticks, (first + second) / 2);
  EXPECT_EQ(seen.back().reuses, 0u);  // a new segment has no past
}

TEST_F(ranked_segments, count_no_use_of_a_part_of_a_used_segment) {
  caching_allocator<with<pytorch<>, evict_least_used>, simulated_device> split;
  void* const part = split.allocate(5_MiB);
  for (int i = 0; i < 5; ++i) split.deallocate(split.allocate(6_MiB));
  split.deallocate(part);
  split.deallocate(split.allocate(5_MiB));
  split.policies().eviction.seen = &seen;
  split.evict_idle();
  ASSERT_EQ(seen.size(), 1u);
  EXPECT_EQ(seen[0].bytes, 20_MiB);
  EXPECT_EQ(seen[0].reuses, 1u);
}

static_assert(!provider_for<host_pinned, with<power_of_two, evict_least_used>>);  // has no virtual time
static_assert(sizeof(caching_allocator<with<pytorch<>, evict_at_free<>>, simulated_device>) <=
              sizeof(caching_allocator<pytorch<>, simulated_device>));

}  // namespace
