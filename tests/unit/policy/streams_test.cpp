// SPDX-License-Identifier: Apache-2.0
#include <type_traits>

#include <gtest/gtest.h>

#include <tessera/core/bytes.hpp>
#include <tessera/core/types.hpp>
#include <tessera/policy/eviction.hpp>
#include <tessera/policy/reuse_across_streams.hpp>
#include <tessera/policy/streams.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/recipe/symmetric.hpp>
#include <tessera/tessera.hpp>

namespace {

using namespace tessera;

template <typename Streams>
using pool_with = caching_allocator<with<pytorch<>, Streams>, simulated_device>;
constexpr stream_id own{1}, other{2};

TEST(reuse_on_same_stream_after_own_events, keeps_a_block_pending_for_its_own_stream_once_recorded) {
  pool_with<reuse_on_same_stream_after_own_events> pool;
  pool.provider().hold_events(true);
  void* const p = pool.allocate(10_MiB, own);
  pool.deallocate(p);
  EXPECT_EQ(pool.allocate(10_MiB, own), p);
  ASSERT_TRUE(pool.record_stream(p, own));
  pool.deallocate(p);
  EXPECT_EQ(pool.current_usage().pending(), 10_MiB);
  EXPECT_NE(pool.allocate(10_MiB, own), p);
  pool.provider().hold_events(false);
  EXPECT_NE(pool.allocate(10_MiB, other), p);
  EXPECT_EQ(pool.allocate(10_MiB, own), p);
}

// The work of the other stream ended in one rank, and goes on in the other one. Only the step decides.
TEST(wait_for_events, reuses_blocks_where_the_program_says_so) {
  void* first[2] = {};
  void* second[2] = {};
  for (const bool is_late : {false, true}) {
    using ranks = tessera::recipe::symmetric<tessera::recipe::pytorch<>>;
    tessera::caching_allocator<ranks, tessera::provider::simulated_device> allocator;
    void* const p = allocator.allocate(5_MiB, own);
    ASSERT_TRUE(allocator.record_stream(p, other));
    allocator.provider().submit(other, 1'000);
    allocator.deallocate(p);
    if (!is_late) allocator.provider().advance(2'000);
    first[is_late] = allocator.allocate(5_MiB, own);  // from the rest of the segment
    allocator.process_events();  // once a step: waits for all streams that still use freed blocks
    second[is_late] = allocator.allocate(5_MiB, own);
    EXPECT_NE(first[is_late], p);
    EXPECT_EQ(second[is_late], p);
  }
  EXPECT_EQ(first[0], first[1]);
  EXPECT_EQ(second[0], second[1]);
}

TEST(reuse_after_events, shares_blocks_among_streams_and_waits_for_all_that_were_recorded) {
  pool_with<reuse_after_events> pool;
  void* const p = pool.allocate(10_MiB, own);
  pool.deallocate(p);
  EXPECT_EQ(pool.allocate(10_MiB, other), p);
  ASSERT_TRUE(pool.record_stream(p, own) && pool.record_stream(p, stream_id{}));
  pool.provider().submit(own, 1'000'000'000);
  pool.provider().submit(stream_id{}, 2'000'000'000);
  pool.deallocate(p);
  pool.provider().advance(1'500'000'000);
  void* const second = pool.allocate(10_MiB, own);
  EXPECT_NE(second, p);
  pool.provider().advance(1'000'000'000);
  EXPECT_EQ(pool.allocate(10_MiB, own), p);
}

static_assert(std::is_empty_v<reuse_after_events> && std::is_empty_v<reuse_on_same_stream_after_own_events>);

TEST(streams_policy, lets_blocks_cross_by_the_rules_that_are_on) {
  EXPECT_EQ(reuse_across_streams<>{}.reuse_rules(), (cross_stream_reuse{true, true, true}));
  EXPECT_EQ((reuse_across_streams<>{.opportunistic = false}.reuse_rules()),
            (cross_stream_reuse{true, false, true}));
  EXPECT_EQ((reuse_across_streams<false, true, false>{}.reuse_rules()),
            (cross_stream_reuse{false, true, false}));
  EXPECT_EQ(reuse_on_same_stream{}.reuse_rules(), cross_stream_reuse{});
  EXPECT_EQ(reuse_immediately{}.reuse_rules(), cross_stream_reuse{});
  EXPECT_TRUE(reuse_across_streams<>::reuses_across_streams && !reuse_on_same_stream::reuses_across_streams &&
              !reuse_immediately::reuses_across_streams);
}

TEST(streams_policy, shares_and_orders_as_on_the_same_stream) {
  const reuse_across_streams<> policy;
  EXPECT_EQ(policy.reuse_key(stream_id{7}), stream_id{7});
  EXPECT_TRUE(policy.needs_event(stream_id{1}, stream_id{2}));
  EXPECT_FALSE(policy.needs_event(stream_id{1}, stream_id{1}));
}

TEST(streams_policy, polls_events_if_more_than_its_maximum_wait) {
  poll_events_lazily<reuse_on_same_stream, std::size_t{4}> late;
  EXPECT_FALSE(late.should_poll_events(4));
  EXPECT_TRUE(late.should_poll_events(5));
  EXPECT_TRUE(reuse_on_same_stream::should_poll_events(1) && reuse_across_streams<>::should_poll_events(1));
  EXPECT_FALSE(reuse_immediately::needs_event(stream_id{1}, stream_id{2}));
  EXPECT_TRUE(reuse_on_same_stream::needs_event(stream_id{1}, stream_id{2}));
  EXPECT_FALSE(reuse_on_same_stream::needs_event(stream_id{1}, stream_id{1}));
}

TEST(eviction_policy, releases_memory_above_a_threshold_at_a_synchronization) {
  evict_at_synchronize_above<> policy;
  const usage now{.cached = 3_MiB, .reserved = 10_MiB, .limit = 1_GiB};
  EXPECT_EQ(policy.bytes_to_evict(eviction_trigger::after_synchronize, now), 10_MiB);
  policy.threshold = 4_MiB;
  EXPECT_EQ(policy.bytes_to_evict(eviction_trigger::after_synchronize, now), 6_MiB);
  policy.threshold = 10_MiB;
  EXPECT_EQ(policy.bytes_to_evict(eviction_trigger::after_synchronize, now), 0u);
  policy.threshold = unlimited;
  EXPECT_EQ(policy.bytes_to_evict(eviction_trigger::after_synchronize, now), 0u);
  policy.threshold = 0;
  EXPECT_EQ(policy.bytes_to_evict(eviction_trigger::after_free, now), 0u);
  EXPECT_EQ(policy.bytes_to_evict(eviction_trigger::before_growth, now), 0u);
  EXPECT_TRUE(policy.is_candidate(512, now) && !policy.is_candidate(0, now));
  EXPECT_TRUE(policy.should_evict({.bytes = 1_MiB, .remaining = 1}));
  EXPECT_FALSE(policy.should_evict({.bytes = 1_MiB, .candidates = 3}));
}

}  // namespace
