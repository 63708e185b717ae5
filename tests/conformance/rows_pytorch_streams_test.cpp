// SPDX-License-Identifier: Apache-2.0
// Rows about PyTorch's allocator. Rows 72 to 76 and 78: streams and events. Rows 115, 116 and 120: the contents
// of a trace. Rows 80 to 93: private pools.
#include <cstddef>
#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/detail/blocks/introspection.hpp>
#include <tessera/extension/checkpoints.hpp>
#include <tessera/extension/observer.hpp>
#include <tessera/extension/private_pools.hpp>
#include <tessera/observe/history.hpp>
#include <tessera/observe/inspect.hpp>
#include <tessera/observe/snapshot.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/recipe/pytorch_2_14.hpp>
#include <tessera/recipe/pytorch_family.hpp>
#include <tessera/tessera.hpp>

#include "extensions.hpp"
#include "rows.hpp"

namespace {

using namespace tessera;
using namespace conformance;
using action = allocator_event::action;

constexpr stream_id a{1}, b{2};
constexpr std::uint64_t second = 1'000'000'000;

TEST(torch_row, n072_the_same_stream_reuses_at_once_without_synchronising) {
  native pool;
  void* const p = pool.allocate(1_KiB, a);
  pool.provider().submit(a, second);
  pool.deallocate(p);
  EXPECT_EQ(pool.allocate(1_KiB, a), p);
  const auto& calls = pool.provider().calls();
  EXPECT_EQ(calls.record + calls.query + calls.wait + calls.synchronize, 0u);
  EXPECT_LT(pool.provider().now_ns(), second);
}
TEST(torch_row, n073_another_stream_never_reuses) {
  native pool;
  void* const p = pool.allocate(1_KiB, a);
  pool.deallocate(p);
  EXPECT_NE(pool.allocate(1_KiB, b), p);
  EXPECT_EQ(reserved(pool), 4_MiB);
  EXPECT_EQ(pool.allocate(1_KiB, a), p);
}

/// A block of 1 KiB of stream a is freed while stream b uses it for a second.
struct held_by_b {
  native pool;
  void* p = pool.allocate(1_KiB, a);

  held_by_b() {
    (void)pool.record_stream(p, b);
    pool.provider().submit(b, second);
    pool.deallocate(p);
  }
};
TEST(torch_row, n074_a_block_that_a_busy_stream_uses_is_freed_and_stays_active) {
  held_by_b h;
  EXPECT_EQ(h.pool.statistics().all.active_bytes.current, 1024);
  EXPECT_EQ(h.pool.statistics().all.active.current, 1);
  EXPECT_EQ(h.pool.statistics().all.allocated_bytes.current, 0);
  EXPECT_EQ(h.pool.statistics().all.requested_bytes.current, 1024);
  EXPECT_EQ(h.pool.current_usage().pending(), 1_KiB);
  EXPECT_EQ(observer_of(h.pool).events.back().what, action::free_requested);
  EXPECT_NE(h.pool.allocate(1_KiB, a), h.p);
}
TEST(torch_row, n075_the_next_request_completes_the_free_and_reuses_the_block) {
  held_by_b h;
  h.pool.provider().advance(second);
  observer_of(h.pool).events.clear();
  EXPECT_EQ(h.pool.allocate(1_KiB, a), h.p);
  EXPECT_EQ(observer_of(h.pool).actions(), (std::vector{action::free_completed, action::alloc}));
  EXPECT_EQ(observer_of(h.pool).events[0].address, at(h.p));
  EXPECT_EQ(h.pool.current_usage().pending(), 0u);
}
TEST(torch_row, n076_cuda_its_own_stream_keeps_no_block_pending) {
  native pool;
  void* const p = pool.allocate(1_KiB, a);
  EXPECT_TRUE(pool.record_stream(p, a));
  pool.provider().submit(a, second);
  pool.deallocate(p);
  EXPECT_EQ(pool.allocate(1_KiB, a), p);
  EXPECT_EQ(pool.provider().calls().record, 0u);
}
TEST(torch_row, n078_the_next_request_reaps_513_events_before_it_searches) {
  native pool;
  std::vector<void*> blocks;
  for (int i = 0; i < 513; ++i) blocks.push_back(pool.allocate(512));
  for (void* p : blocks) (void)pool.record_stream(p, b);
  pool.provider().submit(b, second);
  for (void* p : blocks) pool.deallocate(p);
  EXPECT_EQ(pool.current_usage().pending(), 513u * 512);
  pool.provider().advance(second);
  EXPECT_EQ(pool.allocate(512), blocks[0]);
  EXPECT_EQ(pool.current_usage().pending(), 0u);
  EXPECT_EQ(pool.provider().calls().acquire, 1u);
}

template <typename Recipe = pytorch_family::native>
using with_pools = caching_allocator<Recipe, simulated_device, extension::observer<event_list>,
                                     extension::private_pools, extension::checkpoints>;

TEST(torch_row, n080_a_capture_on_two_streams_takes_two_segments_of_its_pool) {
  with_pools<> on;
  const stream_id main{1}, side{2};
  on.deallocate(on.allocate(5_MiB, main));
  on.deallocate(on.allocate(5_MiB, side));
  const pool_id pool = pools(on).create();
  const auto is_captured = [](void*, stream_id s) noexcept { return s == stream_id{1} || s == stream_id{2}; };
  ASSERT_TRUE(pools(on).open(pool, {is_captured, nullptr}, extension::scope_kind::capture));
  void* const here = on.allocate(5_MiB, main);
  void* const there = on.allocate(5_MiB, side);
  EXPECT_EQ(segments(on), 4u);
  EXPECT_EQ(segment_of(on, here).private_pool, pool);
  EXPECT_EQ(segment_of(on, there).private_pool, pool);
}
/// The MiB that each of three pools reserves. Each but the first is opened in the scope of the one before. 20 MiB are
/// requested after each scope begins, and after each of the inner ones ends.
template <typename Recipe>
std::vector<std::size_t> reserved_by_nested_pools() {
  with_pools<Recipe> on;
  std::vector<pool_id> nested;
  for (int i = 0; i < 3; ++i) {
    nested.push_back(pools(on).create());
    EXPECT_TRUE(pools(on).open(nested.back(), extension::scope_kind::plain));
    (void)on.allocate(20_MiB);
  }
  for (const int inner : {2, 1}) {
    EXPECT_TRUE(pools(on).close(nested[static_cast<std::size_t>(inner)]));
    (void)on.allocate(20_MiB);
  }
  std::vector<std::size_t> result;
  for (const pool_id pool : nested) result.push_back(pools(on).usage_of(pool).reserved / 1_MiB);
  return result;
}
TEST(torch_row, n081_of_nested_scopes_the_newest_decides_in_pytorch_2_14_and_the_oldest_in_2_6) {
  const std::vector<std::size_t> by_the_newest{40, 40, 20};
  EXPECT_EQ(reserved_by_nested_pools<pytorch_2_14_family::native>(), by_the_newest);
  EXPECT_EQ(reserved_by_nested_pools<pytorch_2_14_family::expandable>(), by_the_newest);
  EXPECT_EQ(reserved_by_nested_pools<pytorch_family::native>(), (std::vector<std::size_t>{100, 0, 0}));
}
TEST(torch_row, n082_the_uses_of_a_pool_are_counted) {
  with_pools<> on;
  const pool_id pool = pools(on).create();
  EXPECT_EQ(pools(on).use_count(pool), 1u);
  ASSERT_TRUE(pools(on).retain(pool));
  EXPECT_EQ(pools(on).use_count(pool), 2u);
  ASSERT_TRUE(pools(on).release(pool));
  EXPECT_EQ(pools(on).use_count(pool), 1u);
}
TEST(torch_row, n084_emptying_the_cache_leaves_the_segment_of_a_pool) {
  with_pools<> on;
  extension::private_pool pool(on);
  {
    const extension::pool_scope scope(pool, extension::scope_kind::capture);
    on.deallocate(on.allocate(5_MiB));
    on.trim();
    EXPECT_EQ(segments(on), 1u);
  }
  on.trim();
  EXPECT_EQ(segments(on), 1u);
}
TEST(torch_row, n085_a_pool_serves_the_default_pools_if_growth_fails_before_anything_is_released) {
  with_pools<> on{device_of(80_MiB)};
  extension::private_pool plain(on), helps(on, {.serves_on_oom = true});
  void* block = nullptr;
  for (auto* pool : {&plain, &helps}) {
    const extension::pool_scope scope(*pool, extension::scope_kind::capture);
    block = on.allocate(40_MiB);
    on.deallocate(block);
  }
  EXPECT_EQ(on.allocate(30_MiB), block);
  EXPECT_EQ(on.provider().calls().release, 0u);
  EXPECT_EQ(on.try_allocate(30_MiB), nullptr);
}
TEST(torch_row, n086_a_pool_without_uses_serves_no_others) {
  with_pools<> on{device_of(80_MiB)};
  const pool_id pool = pools(on).create({.serves_on_oom = true});
  ASSERT_TRUE(pools(on).open(pool, extension::scope_kind::capture));
  void* const kept = on.allocate(16);
  on.deallocate(on.allocate(60_MiB));
  ASSERT_TRUE(pools(on).close(pool));
  ASSERT_TRUE(pools(on).release(pool));
  void* const other = on.allocate(30_MiB);
  EXPECT_EQ(segment_of(on, other).private_pool, pool_id{}) << "the idle segment went back instead";
  on.deallocate(kept);
  on.deallocate(other);
}
TEST(torch_row, n087_a_pool_that_never_splits_takes_a_segment_for_each_4M) {
  observed<with<pytorch_family::native, split_never<>>> never;
  native ordinary;
  with_pools<> mixed;
  extension::private_pool pool(mixed, {.never_splits = true});
  const extension::pool_scope scope(pool, a, extension::scope_kind::capture);
  for (int i = 0; i < 2; ++i) {
    (void)mixed.allocate(4_MiB, a);
    (void)never.allocate(4_MiB);
    (void)ordinary.allocate(4_MiB);
  }
  EXPECT_EQ(segments(never), 2u);
  EXPECT_EQ(reserved(never), 40_MiB);
  EXPECT_EQ(live(never), 40_MiB) << "one block each";
  EXPECT_EQ(segments(ordinary), 1u);
  EXPECT_EQ(segments(mixed), 2u);
  EXPECT_EQ(live(mixed), 40_MiB);
}
TEST(torch_row, n088_the_default_pools_are_not_emptied_inside_a_scope_as_in_pytorch_2_6) {
  with_pools<> on{device_of(80_MiB)};
  on.deallocate(on.allocate(60_MiB));
  extension::private_pool pool(on);
  {
    const extension::pool_scope scope(pool, extension::scope_kind::capture);
    EXPECT_EQ(on.try_allocate(60_MiB), nullptr);
  }
  on.trim();
  const extension::pool_scope again(pool, extension::scope_kind::capture);
  EXPECT_NE(on.try_allocate(60_MiB), nullptr);
}
TEST(torch_row, n088_the_default_pools_are_emptied_inside_a_scope_that_only_redirects) {
  with_pools<> on{device_of(80_MiB)};
  on.deallocate(on.allocate(60_MiB));
  extension::private_pool pool(on);
  const extension::pool_scope scope(pool, {}, extension::scope_kind::plain);
  EXPECT_NE(on.try_allocate(60_MiB), nullptr);
}
TEST(torch_row, n091_the_numbers_of_pools_increase) {
  with_pools<> on;
  const pool_id first = pools(on).create();
  EXPECT_LT(first, pools(on).create());
  ASSERT_TRUE(pools(on).open(first, extension::scope_kind::capture));
  (void)on.allocate(16);
  EXPECT_EQ(take_snapshot(on).segments[0].pool, (snapshot::pool_id{0, first.number}));
}
TEST(torch_row, n092_the_two_outputs_of_a_graph_are_live_after_the_restore_of_a_checkpoint) {
  with_pools<> on;
  extension::private_pool pool(on);
  std::vector<void*> outputs;
  {
    const extension::pool_scope scope(pool, extension::scope_kind::capture);
    for (int i = 0; i < 2; ++i) outputs.push_back(on.allocate(512));
  }
  const extension::pool_checkpoint made = checkpoints_of(pool).record();
  for (void* p : outputs) on.deallocate(p);
  EXPECT_EQ(live(on), 0u);
  ASSERT_TRUE(checkpoints_of(pool).restore(made));
  EXPECT_EQ(live(on), 2u * 512);
  on.deallocate(outputs[0]);
  EXPECT_EQ(live(on), 512u);
  on.deallocate(outputs[1]);
  EXPECT_EQ(live(on), 0u);
}
/// Three blocks of 20 MiB at a time, ten times, in another thread that uses a private pool.
template <typename Pool>
void three_blocks_ten_times(Pool& on) {
  (void)on.allocate(16);
  std::thread([&on] {
    extension::private_pool pool(on);
    const extension::pool_scope scope(pool, extension::scope_kind::capture);
    for (int i = 0; i < 10; ++i) {
      std::vector<void*> held;
      for (int k = 0; k < 3; ++k) held.push_back(on.allocate(20_MiB));
      for (void* p : held) on.deallocate(p);
    }
  }).join();
}
TEST(torch_row, n093_a_pool_that_another_thread_uses_takes_4_segments_or_2_ranges) {
  with_pools<> segmented;
  three_blocks_ten_times(segmented);
  EXPECT_EQ(segments(segmented), 4u);
  with_pools<pytorch_family::expandable> ranged;
  three_blocks_ten_times(ranged);
  EXPECT_EQ(observer_of(ranged).count(action::range_reserve), 2u);
  EXPECT_EQ(reserved(ranged), 62_MiB);
}

constexpr std::size_t floats = std::size_t{311} * 411 * sizeof(float);

TEST(torch_row, n115_the_trace_has_the_unrounded_size) {
  native pool;
  void* const p = pool.allocate(floats);
  const allocator_event latest = observer_of(pool).events.back();
  EXPECT_EQ(latest.what, action::alloc);
  EXPECT_EQ(latest.bytes, floats);
  EXPECT_EQ(latest.address, at(p));
  EXPECT_EQ(latest.block, align_up(floats, 512));
}
TEST(torch_row, n116_a_walk_over_the_segments_finds_the_block_with_its_request) {
  native pool;
  void* const p = pool.allocate(floats);
  std::size_t found = 0;
  tessera::detail::introspect(pool).for_each_block([&](const detail::block& each) {
    if (each.status.state == detail::block::state::live && each.address == at(p)) found = each.request.bytes;
  });
  EXPECT_EQ(found, floats);
}
TEST(torch_row, n120_segments_and_trace_entries_have_the_number_of_their_pool) {
  caching_allocator<pytorch_family::native, simulated_device, extension::private_pools,
                    extension::checkpoints, extension::observer<history<>>>
      on;
  extension::private_pool pool(on);
  (void)on.allocate(16);
  {
    const extension::pool_scope scope(pool, extension::scope_kind::capture);
    (void)on.allocate(5_MiB);
  }
  const snapshot seen = take_snapshot(on);
  const snapshot::pool_id inside{0, pool.id().number};
  std::vector<std::pair<snapshot::action, snapshot::pool_id>> entries;
  for (const snapshot::entry& e : seen.trace_of(0)) entries.emplace_back(e.what, e.pool);
  using what = snapshot::action;
  EXPECT_EQ(entries, (std::vector<std::pair<what, snapshot::pool_id>>{{what::segment_alloc, {}},
                                                                      {what::alloc, {}},
                                                                      {what::segment_alloc, inside},
                                                                      {what::alloc, inside}}));
  ASSERT_EQ(seen.segments.size(), 2u);
  for (const snapshot::segment& s : seen.segments)
    EXPECT_EQ(s.pool, s.large ? inside : snapshot::pool_id{}) << s.size;
}

}  // namespace
