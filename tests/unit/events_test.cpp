// SPDX-License-Identifier: Apache-2.0
// The exact events of an observer. Statistics agree with them, and with a walk over all blocks.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/extension/count_totals.hpp>
#include <tessera/extension/observer.hpp>
#include <tessera/extension/private_pools.hpp>
#include <tessera/extension/sleep_mode.hpp>
#include <tessera/observe/inspect.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/recipe/cuda_async.hpp>
#include <tessera/recipe/stitched.hpp>
#include <tessera/tessera.hpp>

#include "../by_day.hpp"
#include "extensions.hpp"

namespace {

using namespace tessera;
using action = allocator_event::action;

struct keep_events {
  std::vector<allocator_event> kept;
  void on(const allocator_event& e) noexcept { kept.push_back(e); }
};
void expect_event(const allocator_event& e, action what, const void* address, std::size_t bytes,
                  std::size_t block, stream_id stream) {
  EXPECT_EQ(e.what, what);
  EXPECT_EQ(e.address, reinterpret_cast<std::uintptr_t>(address));
  EXPECT_EQ(e.bytes, bytes);
  EXPECT_EQ(e.block, block);
  EXPECT_EQ(e.stream, stream);
}

template <typename Recipe>
using observed_pool = caching_allocator<Recipe, simulated_device, extension::private_pools,
                                        extension::sleep_mode, extension::observer<keep_events>>;
template <typename Pool>
[[nodiscard]] std::vector<allocator_event>& kept_by(Pool& pool) {
  return pool.template get<extension::observer<keep_events>>().with(
      [](keep_events& e) -> std::vector<allocator_event>& { return e.kept; });
}
constexpr stream_id own{3};

TEST(events, contain_the_request_and_its_block) {
  observed_pool<pytorch<>> pool{simulated_device{simulated_device::options{.capacity = 30_MiB}}};
  std::vector<allocator_event>& kept = kept_by(pool);
  void* const p = pool.allocate(1000, own);
  void* const q = pool.allocate(2000, own);
  pool.deallocate(p);
  pool.deallocate(pool.allocate(3000, own));
  ASSERT_EQ(kept.size(), 8u);
  expect_event(kept[0], action::segment_alloc, p, 2_MiB, 2_MiB, own);
  expect_event(kept[1], action::alloc, p, 1000, 1024, own);
  expect_event(kept[2], action::alloc, q, 2000, 2048, own);
  expect_event(kept[3], action::free_requested, p, 1000, 1024, own);
  expect_event(kept[4], action::free_completed, p, 1000, 1024, own);
  expect_event(kept[6], action::free_requested, reinterpret_cast<void*>(kept[5].address), 3000, 3072, own);
  expect_event(kept[7], action::free_completed, reinterpret_cast<void*>(kept[5].address), 3000, 3072, own);
  kept.clear();
  EXPECT_EQ(pool.try_allocate(30_MiB + 1, own), nullptr);
  ASSERT_EQ(kept.size(), 3u);
  expect_event(kept[0], action::refused, nullptr, 32_MiB, 32_MiB, own);
  expect_event(kept[1], action::refused, nullptr, 32_MiB, 32_MiB, own);
  expect_event(kept[2], action::oom, reinterpret_cast<void*>(28_MiB), 30_MiB + 1, 30_MiB + 512, own);
  pool.deallocate(q);
  pool.trim();
  expect_event(kept.back(), action::segment_free, p, 2_MiB, 2_MiB, own);
}

TEST(events, tell_of_pages_and_ranges) {
  observed_pool<pytorch_family::expandable> pool{
      simulated_device{simulated_device::options{.capacity = 64_MiB}}};
  std::vector<allocator_event>& kept = kept_by(pool);
  void* const p = pool.allocate(30_MiB, own);
  ASSERT_EQ(kept.size(), 4u);
  expect_event(kept[0], action::range_reserve, p, 80_MiB, 80_MiB, own);
  expect_event(kept[1], action::segment_map, p, 20_MiB, 20_MiB, own);
  expect_event(kept[2], action::segment_map, static_cast<char*>(p) + 20_MiB, 20_MiB, 20_MiB, own);
  expect_event(kept[3], action::alloc, p, 30_MiB, 30_MiB, own);
  kept.clear();
  pool.provider().fail_call(1);
  pool.deallocate(p);
  EXPECT_NE(pool.try_allocate(45_MiB, own), nullptr);
  const auto refused =
      std::find_if(kept.begin(), kept.end(), [](const auto& e) { return e.what == action::refused; });
  ASSERT_NE(refused, kept.end());
  expect_event(*refused, action::refused, nullptr, 20_MiB, 20_MiB, own);
}

/// The actions of events in a private pool and in the default pools.
template <typename Recipe>
class events_of_pools : public testing::Test {};
using with_private_pools = types_by_day<2, pytorch<>, stitched, pytorch_family::expandable, cuda_async>;
TYPED_TEST_SUITE(events_of_pools, with_private_pools);

TYPED_TEST(events_of_pools, name_the_private_pool) {
  observed_pool<TypeParam> on{simulated_device{simulated_device::options{.capacity = 128_MiB}}};
  std::vector<allocator_event>& kept = kept_by(on);
  void* const other = on.allocate(2_MiB, own);
  const pool_id pool = pools(on).create();
  const auto expect_all_of = [&](pool_id expected, action at_least) {
    bool found = false;
    for (const allocator_event& e : kept) {
      EXPECT_EQ(e.private_pool, expected) << static_cast<int>(e.what);
      found = found || e.what == at_least;
    }
    EXPECT_TRUE(found) << static_cast<int>(at_least);
    kept.clear();
  };
  expect_all_of({}, action::alloc);
  ASSERT_TRUE(pools(on).open(pool, own, extension::scope_kind::capture));
  void* const p = on.allocate(30_MiB, own);
  expect_all_of(pool, action::alloc);
  EXPECT_TRUE(on.reuse_in_place(p, 30_MiB - 1, own));
  expect_all_of(pool, action::free_completed);
  EXPECT_EQ(on.try_allocate(120_MiB, own), nullptr);
  expect_all_of(pool, action::oom);
  ASSERT_TRUE(pools(on).close(pool));
  if constexpr (decltype(on)::has_ranges) {
    ASSERT_TRUE(sleep_mode_of(on).sleep(pool, extension::sleep_contents::discard));
    expect_all_of(pool, action::sleep);
    ASSERT_TRUE(sleep_mode_of(on).wake(pool));
    expect_all_of(pool, action::wake);
  }
  on.deallocate(p);
  expect_all_of(pool, action::free_requested);
  ASSERT_TRUE(pools(on).release(pool));
  pools(on).trim(pool);
  expect_all_of(pool, decltype(on)::has_ranges ? action::segment_unmap : action::segment_free);
  on.deallocate(other);
  on.trim();
  expect_all_of({}, action::free_completed);
}

// A block that is allocated again at once is counted like any other.
TEST(statistics, do_not_depend_on_when_somebody_looks) {
  caching_allocator<with<pytorch<>, split_below<16_MiB>>, simulated_device, extension::private_pools,
                    extension::sleep_mode>
      watched, left_alone;
  std::mt19937_64 random(11);
  std::vector<std::pair<void*, void*>> live;
  for (int step = 0; step < 2000; ++step) {
    const std::size_t bytes = random() % 5 == 0 ? 1 + random() % 30_MiB : 1 + random() % 2_MiB;
    void* const p = watched.allocate(bytes);
    ASSERT_STREQ(watched.audit(), nullptr);
    void* const q = left_alone.allocate(bytes);
    if (random() % 3 != 0) {
      watched.deallocate(p);
      left_alone.deallocate(q);
    } else {
      live.emplace_back(p, q);
    }
    if (live.size() > 12) {
      watched.deallocate(live[static_cast<std::size_t>(step) % 12].first);
      left_alone.deallocate(live[static_cast<std::size_t>(step) % 12].second);
      live[static_cast<std::size_t>(step) % 12] = live.back();
      live.pop_back();
    }
    if (step % 100 == 50) watched.reset_peak_statistics(), left_alone.reset_peak_statistics();
    const auto seen = watched.statistics(), found = left_alone.statistics();
    for (const detail::pool_counter& c : detail::pool_counters) {
      ASSERT_EQ(found.all.*c.of, seen.all.*c.of) << c.name << ", step " << step;
      for (std::size_t in = 0; in < 2; ++in)
        ASSERT_EQ(found.pool[in].*c.of, seen.pool[in].*c.of) << c.name << ", step " << step;
    }
    ASSERT_EQ(found.oversize_allocations, seen.oversize_allocations);
    ASSERT_EQ(found.oversize_segments, seen.oversize_segments);
  }
}

TEST(statistics, count_no_call_that_gave_nothing_back) {
  caching_allocator<pytorch_family::expandable, simulated_device, extension::private_pools,
                    extension::sleep_mode>
      pool;
  (void)pool.allocate(18_MiB);  // of one page of 20
  pool.trim();
  EXPECT_EQ(pool.statistics().num_device_free, 0u);
  EXPECT_EQ(pool.statistics().num_device_alloc, 1u);
  EXPECT_EQ(pool.statistics().num_sync_all_streams, 1u);
}

/// Observes a random program and counts, independently of the allocator.
template <typename Recipe>
class statistics_of : public testing::Test {};
using recipes =
    types_by_day<2, pytorch<>, paddle_family::auto_growth, with<pytorch<>, split_below<4_MiB, 1_MiB>>,
                 with<paddle_family::auto_growth, split_if_remainder_at_least<64>>, cuda_async,
                 with<pytorch<>, reuse_immediately>>;
TYPED_TEST_SUITE(statistics_of, recipes);

TYPED_TEST(statistics_of, all_blocks_agree_with_events_and_a_walk) {
  observed_pool<TypeParam> pool{simulated_device{simulated_device::options{.capacity = 200_MiB}}};
  caching_allocator<TypeParam, simulated_device, extension::private_pools, extension::sleep_mode,
                    extension::count_totals>
      sums{simulated_device{simulated_device::options{.capacity = 200_MiB}}};
  std::mt19937_64 random(5);
  std::vector<std::pair<void*, void*>> live;
  counter allocation, allocated, active, active_bytes, requested, segment, reserved;
  for (int step = 0; step < 1500; ++step) {
    const stream_id stream{random() % 2}, other{5 + random() % 2};
    if (live.size() < 60 && random() % 2 == 0) {
      const std::size_t bytes = random() % 3 == 0 ? 1 + random() % 8_MiB : 1 + random() % 20_KiB;
      void* const p = pool.try_allocate(bytes, stream);
      void* const q = sums.try_allocate(bytes, stream);
      ASSERT_EQ(p != nullptr, q != nullptr);
      if (p == nullptr) continue;
      live.emplace_back(p, q);
      if (random() % 4 == 0) {
        ASSERT_TRUE(pool.record_stream(p, other) && sums.record_stream(q, other));
        pool.provider().submit(other, 100'000);
        sums.provider().submit(other, 100'000);
      }
    } else if (!live.empty()) {
      auto& chosen = live[random() % live.size()];
      pool.deallocate(chosen.first);
      sums.deallocate(chosen.second);
      chosen = live.back();
      live.pop_back();
    }
    if (step % 50 == 0) pool.provider().advance(100'000), sums.provider().advance(100'000);
    if (step % 400 == 399) pool.trim(20_MiB), sums.trim(20_MiB);
    for (const allocator_event& e : kept_by(pool)) {
      const auto bytes = static_cast<std::int64_t>(e.bytes), block = static_cast<std::int64_t>(e.block);
      switch (e.what) {
        case action::alloc:
          allocation.increase(1), allocated.increase(block);
          active.increase(1), active_bytes.increase(block), requested.increase(bytes);
          break;
        case action::free_requested: allocation.decrease(1), allocated.decrease(block); break;
        case action::free_completed:
          active.decrease(1), active_bytes.decrease(block), requested.decrease(bytes);
          break;
        case action::segment_alloc: segment.increase(1), reserved.increase(bytes); break;
        case action::segment_free: segment.decrease(1), reserved.decrease(bytes); break;
        default:;
      }
    }
    kept_by(pool).clear();
    const auto counted = pool.statistics();
    ASSERT_EQ(counted.all.allocation, allocation) << step;
    ASSERT_EQ(counted.all.allocated_bytes, allocated) << step;
    ASSERT_EQ(counted.all.active, active) << step;
    ASSERT_EQ(counted.all.active_bytes, active_bytes) << step;
    ASSERT_EQ(counted.all.requested_bytes, requested) << step;
    ASSERT_EQ(counted.all.segment, segment) << step;
    ASSERT_EQ(counted.all.reserved_bytes, reserved) << step;
    ASSERT_EQ(sums.current_usage(), pool.current_usage()) << step;
    std::int64_t splits = 0, split_bytes = 0;
    for_each_block(pool, [&](const segment_view& s, const block_view& b) {
      if (b.is != block_view::state::free || b.bytes == s.bytes) return;
      ++splits;
      split_bytes += static_cast<std::int64_t>(b.bytes);
    });
    ASSERT_EQ(counted.all.inactive_split.current, splits) << step;
    ASSERT_EQ(counted.all.inactive_split_bytes.current, split_bytes) << step;
  }
  EXPECT_GT(pool.statistics().all.inactive_split.peak, 0);
}

}  // namespace
