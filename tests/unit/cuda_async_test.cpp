// SPDX-License-Identifier: Apache-2.0
// Blocks that move between streams: which blocks, by which rule, and what happens to their segments.
#include <cstddef>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/concurrent/locked.hpp>
#include <tessera/concurrent/per_stream.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

namespace {

using namespace tessera;
using async = caching_allocator<cuda_async, simulated_device>;
constexpr stream_id a{1}, b{2}, c{3};
constexpr std::uint64_t long_time = 1'000'000'000;

simulated_device device_of(std::size_t capacity) {
  return simulated_device{simulated_device::options{.capacity = capacity}};
}
policies<cuda_async> only(bool follows, bool opportunistic, bool inserts) {
  policies<cuda_async> chosen;
  chosen.streams.follow_dependencies = follows;
  chosen.streams.opportunistic = opportunistic;
  chosen.streams.insert_dependencies = inserts;
  return chosen;
}
char* at(void* p) { return static_cast<char*>(p); }
bool is_whole(const auto& pool) { return pool.audit() == nullptr; }

/// Frees a block of `bytes` on a stream that is busy for a long time.
void* freed_behind_work(auto& pool, std::size_t bytes, stream_id stream) {
  void* const p = pool.allocate(bytes, stream);
  pool.provider().submit(stream, long_time);
  pool.deallocate(p);
  return p;
}

TEST(cuda_async, rounds_to_512_bytes_and_grows_in_multiples_of_2_mib) {
  async pool;
  (void)pool.allocate(1, a);
  EXPECT_EQ(pool.current_usage().allocated, 512u);
  EXPECT_EQ(pool.current_usage().reserved, 2_MiB);
  (void)pool.allocate(3_MiB, a);
  EXPECT_EQ(pool.current_usage().reserved, 6_MiB);
}

TEST(cuda_async, begins_as_pytorch_sets_it_up) {
  const config::pytorch::settings settings{.async_backend = true, .memory_fraction = percent(50)};
  caching_allocator<cuda_async, simulated_device> pool{device_of(64_MiB), cuda_async::configured(settings)};
  EXPECT_EQ(pool.policies().eviction.threshold.get(), unlimited);
  EXPECT_TRUE(pool.policies().streams.follow_dependencies && pool.policies().streams.opportunistic &&
              pool.policies().streams.insert_dependencies);
  EXPECT_EQ(pool.current_usage().limit, 32_MiB);
  EXPECT_DEATH((void)cuda_async::configured({}), "cuda_async::configured: settings for another recipe");
}

TEST(cuda_async, takes_what_is_done_from_another_stream) {
  async pool{simulated_device{}, only(false, true, false)};
  void* const p = freed_behind_work(pool, 2_MiB, a);
  EXPECT_NE(pool.allocate(2_MiB, b), p);
  pool.provider().advance(long_time);
  EXPECT_EQ(pool.allocate(2_MiB, c), p);
  EXPECT_TRUE(is_whole(pool));
}

TEST(cuda_async, takes_the_unused_rest_of_a_segment_though_its_stream_is_busy) {
  async pool{simulated_device{}, only(false, true, false)};
  pool.provider().submit(a, long_time);
  void* const p = pool.allocate(1_MiB, a);
  EXPECT_EQ(pool.allocate(1_MiB, b), at(p) + 1_MiB);
  EXPECT_EQ(pool.current_usage().reserved, 2_MiB);
}

TEST(cuda_async, takes_nothing_over_that_may_not_serve) {
  using exact = with<cuda_async, split_never<block_fit::exact>>;
  caching_allocator<exact, simulated_device> pool;
  void* const p = pool.allocate(4_MiB, a);
  (void)pool.allocate(512, b);
  pool.deallocate(p);
  (void)pool.allocate(2_MiB, b);
  EXPECT_EQ(pool.allocate(4_MiB, b), p);
  EXPECT_TRUE(is_whole(pool));
}

TEST(cuda_async, waits_for_the_default_stream_too) {
  async pool;
  (void)freed_behind_work(pool, 2_MiB, stream_id{});
  pool.trim();
  EXPECT_EQ(pool.current_usage().reserved, 0u);
}

TEST(cuda_async, discards_each_event_that_it_waited_for) {
  async pool;
  (void)freed_behind_work(pool, 2_MiB, a);
  (void)freed_behind_work(pool, 2_MiB, b);
  pool.trim();
  EXPECT_GT(pool.provider().calls().record, 0u);
  EXPECT_EQ(pool.provider().calls().discard, pool.provider().calls().record);
}

TEST(cuda_async, follows_a_wait_that_was_passed_on) {
  async pool{simulated_device{}, only(true, false, false)};
  void* const p = freed_behind_work(pool, 2_MiB, a);
  simulated_device::event mark;
  ASSERT_TRUE(pool.provider().record(a, mark) && pool.provider().make_wait(b, mark));
  ASSERT_TRUE(pool.provider().record(b, mark) && pool.provider().make_wait(c, mark));
  EXPECT_EQ(pool.allocate(2_MiB, c), p);
}

TEST(cuda_async, does_not_follow_a_wait_for_what_was_before) {
  async pool{simulated_device{}, only(true, false, false)};
  void* const p = pool.allocate(2_MiB, a);
  pool.provider().submit(a, long_time);
  simulated_device::event early;
  ASSERT_TRUE(pool.provider().record(a, early));
  pool.provider().submit(a, long_time);
  pool.deallocate(p);
  ASSERT_TRUE(pool.provider().make_wait(b, early));
  EXPECT_NE(pool.allocate(2_MiB, b), p);
}

TEST(cuda_async, inserts_a_wait_if_nothing_else_helps) {
  async pool{simulated_device{}, only(false, false, true)};
  void* const p = freed_behind_work(pool, 2_MiB, a);
  EXPECT_EQ(pool.allocate(2_MiB, b), p);
  EXPECT_EQ(pool.provider().calls().make_wait, 1u);
  EXPECT_TRUE(pool.provider().is_ordered_after(b, a, pool.provider().position(a)));
}

TEST(cuda_async, acquires_if_a_wait_cannot_be_inserted) {
  async pool{simulated_device{}, only(false, false, true)};
  void* const p = freed_behind_work(pool, 2_MiB, a);
  pool.provider().fail_call(1);
  void* const q = pool.allocate(2_MiB, b);
  EXPECT_NE(q, p);
  EXPECT_EQ(pool.current_usage().reserved, 4_MiB);
  EXPECT_EQ(pool.allocate(2_MiB, a), p);
  EXPECT_TRUE(is_whole(pool));
}

// A block without a wait is preferred to a better fit. Waits are inserted last.
TEST(cuda_async, prefers_following_to_luck_and_luck_to_waiting) {
  for (const bool waits : {true, false}) {
    async pool;
    void* const followed = pool.allocate(8_MiB, a);
    void* const done = pool.allocate(6_MiB, b);
    void* const busy = pool.allocate(4_MiB, c);
    pool.provider().submit(a, long_time);
    pool.provider().submit(b, 1);
    pool.provider().submit(c, long_time);
    pool.provider().advance(1);
    pool.deallocate(followed);
    pool.deallocate(done);
    pool.deallocate(busy);
    constexpr stream_id d{4};
    ASSERT_TRUE(!waits || pool.provider().make_wait(d, a, pool.provider().position(a)));
    EXPECT_EQ(pool.allocate(4_MiB, d), waits ? followed : done);
    const auto inserted = pool.provider().calls().make_wait;
    EXPECT_EQ(pool.allocate(2_MiB, d), waits ? static_cast<void*>(at(followed) + 4_MiB) : at(done) + 4_MiB);
    EXPECT_EQ(pool.allocate(6_MiB, d), waits ? done : followed);
    EXPECT_EQ(pool.provider().calls().make_wait, inserted + (waits ? 0 : 1));
    EXPECT_TRUE(is_whole(pool));
  }
}

TEST(cuda_async, takes_over_only_the_part_it_needs) {
  async pool;
  void* const p = freed_behind_work(pool, 8_MiB, a);
  EXPECT_EQ(pool.allocate(1_MiB, b), p);
  EXPECT_EQ(pool.allocate(7_MiB, a), at(p) + 1_MiB);  // at once, because the rest never left its stream
  EXPECT_EQ(pool.provider().calls().make_wait, 1u);
  EXPECT_EQ(pool.current_usage().reserved, 8_MiB);
  EXPECT_TRUE(is_whole(pool));
}

TEST(cuda_async, puts_free_neighbours_of_several_streams_together) {
  async pool;
  void* const low = pool.allocate(4_MiB, a);
  pool.deallocate(low);
  void* const part = pool.allocate(1_MiB, b);
  ASSERT_EQ(part, low);
  pool.deallocate(part);
  const auto split = pool.statistics().all.inactive_split;
  EXPECT_EQ(split.current, 2);  // 1 MiB of b and 3 MiB of a
  EXPECT_EQ(pool.allocate(4_MiB, c), low);
  EXPECT_EQ(pool.statistics().all.inactive_split.current, 0);
  EXPECT_EQ(pool.current_usage().reserved, 4_MiB);
  EXPECT_TRUE(is_whole(pool));
}

// A block from another stream lies next to one of the requesting stream. They are coalesced, even if the
// request then fails.
TEST(cuda_async, merges_what_it_takes_over_with_what_it_has) {
  for (const std::size_t bytes : {1_MiB, 1_MiB + 512, 1_MiB + 512_KiB}) {
    async pool{simulated_device{}, only(false, true, false)};
    void* const low = pool.allocate(1_MiB, a);
    void* const middle = pool.allocate(512_KiB, a);
    void* const high = pool.allocate(512_KiB, a);
    pool.deallocate(middle);
    ASSERT_EQ(pool.allocate(512_KiB, b), middle);
    pool.deallocate(middle);  // it belongs to b now
    pool.deallocate(low);
    void* const both = pool.allocate(bytes, b);
    EXPECT_EQ(both, low);
    pool.deallocate(both);
    EXPECT_TRUE(is_whole(pool)) << bytes;
    EXPECT_EQ(pool.allocate(1_MiB + 512_KiB, b), low);
    EXPECT_EQ(pool.current_usage().reserved, 2_MiB);
    pool.deallocate(high);
    EXPECT_TRUE(is_whole(pool));
  }
}

TEST(cuda_async, gives_a_segment_back_whose_parts_wait_on_several_streams) {
  async pool;
  void* const low = pool.allocate(4_MiB, a);
  pool.deallocate(low);
  pool.deallocate(pool.allocate(1_MiB, b));
  pool.provider().submit(b, long_time);
  pool.trim();
  EXPECT_EQ(pool.current_usage().reserved, 0u);
  EXPECT_EQ(pool.provider().used(), 0u);
  EXPECT_TRUE(is_whole(pool));
}

TEST(cuda_async, waits_for_streams_when_everything_is_to_go) {
  async pool;
  (void)freed_behind_work(pool, 2_MiB, a);
  const auto before = pool.provider().now_ns();
  pool.trim();
  EXPECT_GE(pool.provider().now_ns(), before + long_time);
  EXPECT_EQ(pool.current_usage().reserved, 0u);
}

// A full device: the request waits for a's memory. It then serves b, though its segment stays.
TEST(cuda_async, waits_before_it_gives_up) {
  async pool{device_of(8_MiB), only(true, true, false)};
  void* const low = pool.allocate(6_MiB, a);
  void* const high = pool.allocate(2_MiB, a);
  pool.deallocate(low);
  void* const kept = pool.allocate(1_MiB, a);
  ASSERT_EQ(kept, low);
  pool.provider().submit(a, long_time);
  pool.deallocate(high);
  void* const rest = pool.allocate(5_MiB, a);
  pool.provider().submit(a, long_time);
  pool.deallocate(rest);
  EXPECT_EQ(pool.allocate(5_MiB, b), rest);
  EXPECT_TRUE(is_whole(pool));
  EXPECT_EQ(pool.try_allocate(4_MiB, b), nullptr);
  EXPECT_TRUE(is_whole(pool));
}

TEST(cuda_async, keeps_recorded_blocks_until_their_event_and_orders_others_after_their_stream) {
  async pool{simulated_device{}, only(true, false, false)};
  void* const p = pool.allocate(2_MiB, a);
  ASSERT_TRUE(pool.record_stream(p, b));
  pool.provider().submit(b, 1'000'000);
  pool.deallocate(p);
  EXPECT_EQ(pool.current_usage().pending(), 2_MiB);
  pool.provider().advance(1'000'000);
  EXPECT_EQ(pool.allocate(2_MiB, a), p);
}

TEST(cuda_async, gives_nothing_back_that_a_stream_still_uses) {
  caching_allocator<with<cuda_async, evict_at_free<>>, simulated_device> pool;
  (void)freed_behind_work(pool, 2_MiB, a);
  EXPECT_EQ(pool.current_usage().reserved, 2_MiB);
  EXPECT_EQ(pool.provider().calls().release, 0u);
  pool.provider().advance(long_time);
  pool.deallocate(pool.allocate(4_MiB, b));
  EXPECT_EQ(pool.current_usage().reserved, 0u);
}

/// A device whose streams have already had 2^32 - 3 tasks.
struct old_device : simulated_device {
  static constexpr std::uint64_t before = (std::uint64_t{1} << 32) - 3;
  std::uint64_t position(stream_id s) const noexcept { return before + simulated_device::position(s); }
  bool is_done(stream_id s, std::uint64_t upto) const noexcept {
    return simulated_device::is_done(s, upto > before ? upto - before : 0);
  }
  bool is_ordered_after(stream_id s, stream_id of, std::uint64_t upto) const noexcept {
    return simulated_device::is_ordered_after(s, of, upto > before ? upto - before : 0);
  }
  bool make_wait(stream_id s, stream_id of, std::uint64_t upto) noexcept {
    return simulated_device::make_wait(s, of, upto > before ? upto - before : 0);
  }
};
TEST(cuda_async, knows_the_order_when_32_bits_have_run_over) {
  caching_allocator<cuda_async, old_device> pool{old_device{}, only(true, true, false)};
  for (int i = 0; i < 8; ++i) {
    void* const p = freed_behind_work(pool, 2_MiB, a);
    EXPECT_NE(pool.allocate(2_MiB, b), p) << i;
    EXPECT_EQ(pool.allocate(2_MiB, a), p) << i;
    pool.deallocate(p);
    pool.provider().advance(long_time);
    EXPECT_EQ(pool.allocate(2_MiB, b), p) << i;
    EXPECT_TRUE(is_whole(pool));
  }
}

TEST(cuda_async, works_in_front_ends_for_threads) {
  locked<caching_allocator<cuda_async, simulated_device>> one;
  void* const p = one.allocate(2_MiB, a);
  one.deallocate(p);
  EXPECT_EQ(one.allocate(2_MiB, b), p);
  EXPECT_EQ(one.audit(), nullptr);
  one.deallocate(p);
  one.trim();
  EXPECT_EQ(one.current_usage().reserved, 0u);
  per_stream<caching_allocator<cuda_async, simulated_device>> arenas;
  void* const q = arenas.allocate(2_MiB, a);
  arenas.deallocate(q);
  EXPECT_NE(arenas.allocate(2_MiB, b), nullptr);
}

TEST(cuda_async, memory_is_released_after_a_wait_even_while_events_are_held) {
  caching_allocator<cuda_async, simulated_device> pool;
  pool.provider().hold_events(true);
  pool.deallocate(pool.allocate(60_MiB, stream_id{3}));
  EXPECT_EQ(pool.current_usage().cached, pool.current_usage().reserved);
  pool.trim();
  EXPECT_EQ(pool.current_usage().reserved, 0u);
}

}  // namespace
