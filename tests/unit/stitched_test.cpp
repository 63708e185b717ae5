// SPDX-License-Identifier: Apache-2.0
// Growth by stitching: idle pages move to the addresses that need memory.
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/interop/end_stream.hpp>
#include <tessera/provider/adaptor.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

namespace {

using namespace tessera;

template <typename... Policy>
using pool_of = caching_allocator<with<stitched, Policy...>, simulated_device>;

simulated_device device_of(std::size_t capacity) {
  return simulated_device{simulated_device::options{.capacity = capacity}};
}
bool is_whole(const auto& pool) { return pool.audit() == nullptr; }

TEST(stitched, maps_little_more_than_requested) {
  pool_of<> pool;
  void* const p = pool.allocate(100_MiB);
  EXPECT_EQ(pool.current_usage().reserved, 100_MiB);
  (void)pool.allocate(1);
  EXPECT_EQ(pool.current_usage().reserved, 102_MiB);
  pool.deallocate(p);
  EXPECT_TRUE(is_whole(pool));
}

// Two idle parts of 40 MiB, with 20 in use between them, serve 70 MiB.
TEST(stitched, joins_idle_pages) {
  pool_of<> pool{device_of(110_MiB)};
  void* const low = pool.allocate(40_MiB);
  void* const used = pool.allocate(20_MiB);
  void* const high = pool.allocate(40_MiB);
  void* const end = pool.allocate(8_MiB);
  pool.deallocate(low);
  pool.deallocate(high);
  ASSERT_NE(pool.try_allocate(70_MiB), nullptr);
  EXPECT_LE(pool.current_usage().reserved, 110_MiB);
  EXPECT_GT(pool.provider().calls().unmap, 0u);
  EXPECT_TRUE(is_whole(pool));
  EXPECT_TRUE(pool.provider().can_use(used, 20_MiB));
  EXPECT_TRUE(pool.provider().can_use(end, 8_MiB));
}

TEST(stitched, moves_idle_pages_from_stream_to_stream_once_their_work_is_done) {
  pool_of<> pool{device_of(100_MiB)};
  void* const p = pool.allocate(96_MiB, stream_id{1});
  pool.provider().submit(stream_id{1}, 5'000'000);
  pool.deallocate(p);
  const auto before = pool.provider().now_ns();
  void* const q = pool.try_allocate(90_MiB, stream_id{2});
  ASSERT_NE(q, nullptr);
  EXPECT_GE(pool.provider().now_ns(), before + 5'000'000);
  EXPECT_TRUE(pool.provider().can_use(q, 90_MiB));
  EXPECT_TRUE(is_whole(pool));
}

TEST(stitched, moves_idle_pages_from_pool_to_pool) {
  pool_of<> pool{device_of(64_MiB)};
  std::vector<void*> small;
  for (int i = 0; i < 120; ++i) small.push_back(pool.allocate(512_KiB));
  for (void* p : small) pool.deallocate(p);
  EXPECT_NE(pool.try_allocate(62_MiB), nullptr);
  EXPECT_TRUE(is_whole(pool));
}

TEST(stitched, moves_no_pages_while_little_is_reserved) {
  pool_of<> pool;
  void* const first = pool.allocate(64_MiB);
  (void)pool.allocate(64_MiB);
  pool.deallocate(first);
  // The peak becomes 130 MiB, and 12 % more may be reserved. So a request of 66 MiB moves idle memory instead.
  (void)pool.allocate(66_MiB);
  EXPECT_GT(pool.provider().calls().unmap, 0u);
  EXPECT_LE(pool.current_usage().reserved, 145_MiB);
  EXPECT_TRUE(is_whole(pool));
}

TEST(stitched, keeps_its_limit_to_the_byte) {
  pool_of<> pool;
  pool.policies().growth.limit = 50_MiB;
  EXPECT_EQ(pool.try_allocate(51_MiB), nullptr);
  void* const a = pool.try_allocate(30_MiB);
  void* const b = pool.try_allocate(20_MiB);
  ASSERT_TRUE(a != nullptr && b != nullptr);
  EXPECT_EQ(pool.current_usage().reserved, 50_MiB);
  EXPECT_EQ(pool.try_allocate(1), nullptr);
  pool.deallocate(a);
  EXPECT_NE(pool.try_allocate(1), nullptr);
  EXPECT_LE(pool.current_usage().reserved, 50_MiB);
  EXPECT_EQ(pool.try_allocate(29_MiB), nullptr);
  EXPECT_NE(pool.try_allocate(28_MiB), nullptr);
  EXPECT_TRUE(is_whole(pool));
}

// Others use the device too, so the allocator cannot reserve all of its memory.
TEST(stitched, gets_along_with_less_than_the_device_has) {
  simulated_device shared = device_of(200_MiB);
  void* const others = shared.acquire(100_MiB);
  caching_allocator<stitched, provider_ref<simulated_device>> pool{provider_ref(shared)};
  void* const low = pool.allocate(40_MiB);
  void* const used = pool.allocate(18_MiB);
  void* const high = pool.allocate(40_MiB);
  pool.deallocate(low);
  pool.deallocate(high);
  EXPECT_NE(pool.try_allocate(78_MiB), nullptr);
  EXPECT_LE(shared.used(), 200_MiB);
  EXPECT_TRUE(is_whole(pool));
  pool.deallocate(used);
  EXPECT_TRUE(shared.release(others, 100_MiB));
}

TEST(stitched, unreserves_ranges_without_pages) {
  pool_of<> pool{device_of(64_MiB)};
  for (std::uint64_t s = 0; s < 50; ++s) pool.deallocate(pool.allocate(60_MiB, stream_id{s}));
  pool.trim();
  EXPECT_EQ(pool.provider().held().reserved, 0u);
  EXPECT_EQ(pool.provider().used(), 0u);
  EXPECT_EQ(pool.current_usage().reserved, 0u);
}

TEST(stitched, keeps_no_ranges_of_streams_that_moved_on) {
  caching_allocator<stitched, simulated_device> pool(simulated_device({.capacity = 64_MiB}));
  for (std::uint64_t s = 1; s <= 500; ++s) pool.deallocate(pool.allocate(4_MiB, stream_id{s}));
  const simulated_device::counts& calls = pool.provider().calls();
  EXPECT_LT(calls.reserve - calls.unreserve, 100u);
  EXPECT_LT(pool.metadata_bytes(), 4_MiB);  // a list has 15 KiB
  EXPECT_EQ(pool.current_usage().reserved, 4_MiB);
  EXPECT_STREQ(pool.audit(), nullptr);
}

TEST(stitched, gives_back_the_idle_memory_of_a_stream_that_ends) {
  caching_allocator<stitched, simulated_device> pool;
  void* const live = pool.allocate(5_MiB, stream_id{2});
  pool.deallocate(pool.allocate(40_MiB, stream_id{1}));
  EXPECT_TRUE(end_stream(pool, stream_id{1}));
  EXPECT_EQ(pool.current_usage().reserved, 6_MiB);
  EXPECT_EQ(pool.provider().calls().reserve - pool.provider().calls().unreserve, 1u);
  pool.deallocate(live);
}

TEST(stitched, maps_more_than_requested_only_below_the_earlier_peak) {
  pool_of<> pool;
  (void)pool.allocate(1_MiB);
  EXPECT_EQ(pool.current_usage().reserved, 2_MiB);
  pool.deallocate(pool.allocate(100_MiB));
  pool.trim();
  EXPECT_EQ(pool.current_usage().reserved, 2_MiB);
  (void)pool.allocate(3_MiB);
  EXPECT_GE(pool.current_usage().reserved, 16_MiB);
  EXPECT_LE(pool.current_usage().reserved, 20_MiB);
  EXPECT_TRUE(is_whole(pool));
}

/// Counts the calls that map and unmap during a program of requests between 2 and 102 MiB, which are all
/// freed at the end.
std::uint64_t calls_of_a_run(auto& pool) {
  const auto before = pool.provider().calls();
  std::uint64_t random = 1;
  std::vector<void*> live;
  for (int i = 0; i < 400; ++i) {
    random = random * 6364136223846793005u + 1442695040888963407u;
    const std::size_t pick = random >> 33;
    if (live.size() < 10) {
      live.push_back(pool.allocate(2_MiB + pick % 100_MiB));
    } else {
      pool.deallocate(live[pick % live.size()]);
      live[pick % live.size()] = live.back();
      live.pop_back();
    }
  }
  for (void* p : live) pool.deallocate(p);
  const auto after = pool.provider().calls();
  return after.map + after.unmap - before.map - before.unmap;
}
TEST(stitched, needs_as_many_calls_after_everything_is_released) {
  pool_of<> pool;
  const std::uint64_t first = calls_of_a_run(pool);
  const std::size_t peak = pool.provider().peak_used();
  pool.trim();
  EXPECT_EQ(pool.current_usage().reserved, 0u);
  EXPECT_EQ(calls_of_a_run(pool), first);
  EXPECT_EQ(pool.provider().peak_used(), peak);
  pool.trim();
  pool.reset_peak_statistics();
  void* const kept = pool.allocate(1_MiB);
  EXPECT_EQ(pool.current_usage().reserved, 2_MiB) << "nothing more, as nothing has lived";
  pool.deallocate(kept);
}
TEST(stitched, costs_less_again_while_something_is_reserved) {
  pool_of<> pool;
  const std::uint64_t first = calls_of_a_run(pool);
  void* const kept = pool.allocate(1_MiB);
  pool.trim();
  EXPECT_GT(pool.current_usage().reserved, 0u);
  EXPECT_LT(calls_of_a_run(pool), first) << "what was needed at most is known";
  pool.deallocate(kept);
}

// 5 MiB would break three whole pages, or map two new ones after a rest of 1 MiB.
TEST(stitched, saves_whole_pages_only_if_more_than_half_is_reserved) {
  for (const bool is_tight : {false, true}) {
    pool_of<> pool{device_of(is_tight ? 60_MiB : 600_MiB)};
    void* const free = pool.allocate(20_MiB);
    void* const used = pool.allocate(21_MiB);
    pool.deallocate(free);
    EXPECT_EQ(pool.allocate(5_MiB), is_tight ? static_cast<char*>(used) + 21_MiB : free);
    EXPECT_TRUE(is_whole(pool));
  }
}

TEST(stitched, trades_memory_for_calls_at_one_knob) {
  const auto run = [](std::size_t peak_parts) {
    pool_of<> pool;
    pool.policies().growth.peak_parts = peak_parts;
    std::uint64_t random = 1;
    std::vector<std::pair<void*, std::size_t>> live;
    for (int i = 0; i < 4000; ++i) {
      random = random * 6364136223846793005u + 1442695040888963407u;
      const std::size_t pick = random >> 33;
      if (live.size() < 40) {
        const std::size_t bytes = 2_MiB + pick % 100_MiB;
        live.emplace_back(pool.allocate(bytes), bytes);
      } else {
        auto& chosen = live[pick % live.size()];
        pool.deallocate(chosen.first, chosen.second);
        chosen = live.back();
        live.pop_back();
      }
    }
    const auto& calls = pool.provider().calls();
    return std::pair(calls.map + calls.unmap, pool.provider().peak_used());
  };
  const auto many = run(512), few = run(8);
  EXPECT_GT(many.first, few.first);
  EXPECT_LT(many.second, few.second);
}

TEST(stitched, moves_less_with_more_slack) {
  const auto run = [](fraction slack) {
    pool_of<> pool;
    pool.policies().growth.slack = slack;
    const std::uint64_t calls = calls_of_a_run(pool);
    return std::pair(calls, pool.provider().peak_used());
  };
  const auto much = run(percent(12)), little = run(percent(1));
  EXPECT_LT(much.first, little.first);
  EXPECT_GT(much.second, little.second);
}

TEST(stitched, treats_parameters_of_0_as_1) {
  pool_of<> pool{device_of(1_GiB)};
  pool.policies().growth.peak_parts = 0;
  pool.policies().growth.rest_parts = 0;
  (void)pool.allocate(300_MiB);
  EXPECT_NE(pool.try_allocate(300_MiB), nullptr);
  EXPECT_EQ(pool.provider().calls().map, 2u) << "all at once";
  EXPECT_TRUE(is_whole(pool));
}

struct one_piece_each : grow_by_stitching<> {
  [[nodiscard]] static constexpr std::size_t max_chunk(const stitching_backend::growth_state&) noexcept {
    return unlimited / 2;
  }
  bool operator==(const one_piece_each&) const = default;
};
struct least_pieces : grow_by_stitching<> {
  [[nodiscard]] static constexpr std::size_t max_chunk(const stitching_backend::growth_state&) noexcept {
    return 1;
  }
  bool operator==(const least_pieces&) const = default;
};
TEST(stitched, makes_pieces_of_any_size_that_a_policy_names) {
  pool_of<one_piece_each> whole;
  (void)whole.allocate(100_MiB);
  EXPECT_EQ(whole.provider().calls().map, 1u);
  pool_of<least_pieces> cut;
  (void)cut.allocate(100_MiB);
  EXPECT_EQ(cut.provider().calls().map, 50u) << "in pages, as nothing smaller is mapped";
}

TEST(stitched, aligns_the_base_of_large_blocks_if_there_is_room) {
  pool_of<> pool;
  pool.policies().growth.alignment = 16_KiB;
  (void)pool.allocate(3_MiB + 512);
  for (int i = 0; i < 20; ++i) (void)pool.allocate(2_MiB + 512);
  EXPECT_TRUE(is_whole(pool));
}

TEST(stitched, serves_by_handle_too) {
  pool_of<> pool{device_of(100_MiB)};
  const block_handle a = pool.allocate_by_handle(60_MiB);
  const block_handle b = pool.allocate_by_handle(30_MiB);
  ASSERT_TRUE(a && b);
  pool.deallocate(a);
  const block_handle c = pool.allocate_by_handle(64_MiB);
  EXPECT_TRUE(c);
  pool.deallocate(b);
  pool.deallocate(c);
  EXPECT_TRUE(is_whole(pool));
}

// Each page kind in turn, and its requests to the device.
TEST(stitched, moves_pages_of_every_kind) {
  pool_of<prefer_pages<page_preference::huge_first>> huge{simulated_device{
      simulated_device::options{.capacity = 200_MiB, .page_granularity = 64_KiB, .huge_budget = 50_MiB}}};
  void* const a = huge.allocate(60_MiB);
  void* const b = huge.allocate(60_MiB);
  huge.deallocate(a);
  EXPECT_NE(huge.try_allocate(130_MiB), nullptr);
  EXPECT_TRUE(is_whole(huge));
  huge.deallocate(b);
  pool_of<prefer_pages<page_preference::huge_1g_only>> giant{device_of(4_GiB)};
  void* const c = giant.allocate(1_GiB + 1);
  EXPECT_EQ(giant.current_usage().reserved, 2_GiB);
  giant.deallocate(c);
  EXPECT_NE(giant.try_allocate(3_GiB), nullptr);
  EXPECT_TRUE(is_whole(giant));
}

}  // namespace
