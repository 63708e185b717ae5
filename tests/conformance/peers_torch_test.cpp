// SPDX-License-Identifier: Apache-2.0
// Requirements from the tests of PyTorch's and torch_npu's caching allocators, beyond the compatibility
// matrix.
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/configured.hpp>
#include <tessera/extension/observer.hpp>
#include <tessera/interop/memory_fraction.hpp>
#include <tessera/interop/ownership.hpp>
#include <tessera/observe/history.hpp>
#include <tessera/observe/host_statistics.hpp>
#include <tessera/observe/inspect.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

#include "extensions.hpp"

namespace {

using namespace tessera;
using state = block_view::state;

simulated_device device_of(std::size_t capacity) {
  return simulated_device{simulated_device::options{.capacity = capacity}};
}

/// The expected statistics, computed from a walk over the blocks.
template <typename Pool>
void expect_statistics_of_the_snapshot(Pool& pool) {
  constexpr std::size_t pools = 2;
  struct sums {
    std::int64_t segment = 0, reserved = 0, allocation = 0, allocated = 0, active = 0, active_bytes = 0,
                 requested = 0, split = 0, split_bytes = 0;
    bool operator==(const sums&) const = default;
  };
  struct segment {
    std::size_t pool = 0;
    std::int64_t reserved = 0;
    std::vector<block_view> blocks;
  };
  std::map<std::uintptr_t, segment> found;
  for_each_block(pool, [&](const segment_view& s, const block_view& b) {
    segment& in = found[s.address];
    in.pool = s.pool, in.reserved = static_cast<std::int64_t>(s.bytes);
    in.blocks.push_back(b);
  });
  std::array<sums, pools> seen{};
  bool in_ranges = false;
  for (auto& [address, in] : found) {
    sums& to = seen[in.pool];
    ++to.segment, to.reserved += in.reserved;
    std::int64_t bytes = 0;
    for (const block_view& b : in.blocks) {
      const auto size = static_cast<std::int64_t>(b.bytes);
      bytes += size;
      if (b.is == state::live) ++to.allocation, to.allocated += size;
      if (b.is != state::free) ++to.active, to.active_bytes += size;
      if (b.is != state::free) to.requested += static_cast<std::int64_t>(b.requested);
      if (b.is == state::free && in.blocks.size() > 1) ++to.split, to.split_bytes += size;
    }
    ASSERT_EQ(bytes, in.reserved);
  }
  for_each_block(pool,
                 [&](const segment_view& s, const block_view&) { in_ranges = in_ranges || s.in_range; });
  const auto told = pool.statistics();
  for (std::size_t i = 0; i < pools; ++i) {
    const pool_statistics& t = told.pool[i];
    sums said{t.segment.current,         t.reserved_bytes.current, t.allocation.current,
              t.allocated_bytes.current, t.active.current,         t.active_bytes.current,
              t.requested_bytes.current, t.inactive_split.current, t.inactive_split_bytes.current};
    // A range is one segment in the statistics. In a walk, each mapped part is one. Its blocks are always
    // split.
    if (in_ranges)
      said.segment = seen[i].segment, said.split = seen[i].split, said.split_bytes = seen[i].split_bytes;
    ASSERT_EQ(said, seen[i]) << "pool " << i;
  }
}

template <typename Recipe>
struct peers_torch : ::testing::Test {};
using devices_recipes = ::testing::Types<pytorch_family::native, pytorch_family::expandable, torch_npu<>>;
TYPED_TEST_SUITE(peers_torch, devices_recipes);

TYPED_TEST(peers_torch, statistics_are_those_of_the_snapshot_after_each_step) {
  // The live bytes grow, shrink and grow again. Peaks never fall, and the current value is allocated minus
  // freed.
  caching_allocator<TypeParam, simulated_device> pool;
  std::mt19937_64 random(19219);
  std::vector<void*> live;
  std::int64_t peak = 0;
  for (int step = 0; step < 300; ++step) {
    const bool up = (step / 35) % 3 != 1;
    if (up || live.empty()) {
      const std::size_t bytes = 1 + random() % (std::size_t{1} << (random() % 26));
      live.push_back(pool.allocate(bytes, stream_id{random() % 2}));
    } else {
      std::swap(live[random() % live.size()], live.back());
      if (random() % 4 == 0)
        pool.provider().submit(stream_id{5}, 1000), (void)pool.record_stream(live.back(), stream_id{5});
      pool.deallocate(live.back());
      live.pop_back();
    }
    if (step % 100 == 99) pool.trim();
    expect_statistics_of_the_snapshot(pool);
    if (::testing::Test::HasFatalFailure()) return;
    const counter bytes = pool.statistics().all.allocated_bytes;
    EXPECT_GE(bytes.peak, peak);
    EXPECT_EQ(bytes.allocated - bytes.freed, bytes.current);
    EXPECT_EQ(static_cast<std::size_t>(bytes.current), pool.current_usage().allocated);
    peak = bytes.peak;
  }
  pool.reset_peak_statistics();
  EXPECT_EQ(pool.statistics().all.allocated_bytes.peak, pool.statistics().all.allocated_bytes.current);
  for (void* p : live) pool.deallocate(p);
  pool.trim();
  EXPECT_EQ(pool.current_usage().reserved, 0u);
  EXPECT_EQ(pool.audit(), nullptr);
}

TYPED_TEST(peers_torch, pending_blocks_are_waited_for_when_memory_runs_out) {
  // A hundred times 160 MiB on a device of 1 GiB. Each block stays pending because of work on another stream.
  caching_allocator<TypeParam, simulated_device> pool(device_of(1_GiB));
  constexpr stream_id other{9};
  void* const y = pool.allocate(160_MiB, other);
  for (int i = 0; i < 100; ++i) {
    void* const x = pool.try_allocate(160_MiB);
    ASSERT_NE(x, nullptr) << i;
    pool.provider().submit(other, 1'000'000);
    ASSERT_TRUE(pool.record_stream(x, other));
    pool.deallocate(x);
  }
  pool.deallocate(y);
  pool.trim();
  EXPECT_EQ(pool.current_usage().reserved, 0u);
}

TYPED_TEST(peers_torch, a_failure_changes_nothing_and_a_retry_is_counted) {
  caching_allocator<TypeParam, simulated_device> pool(device_of(1_GiB));
  void* const kept = pool.allocate(100_MiB);
  const auto before = pool.statistics();
  EXPECT_THROW((void)pool.allocate(std::size_t{800'000'000} << 30), out_of_memory);
  EXPECT_EQ(pool.statistics().all.allocated_bytes, before.all.allocated_bytes);
  EXPECT_EQ(pool.statistics().num_ooms, 1u);
  // Half of the device is allocated and freed, then two thirds requested. The cache is emptied once, which is
  // a retry.
  pool.reset_accumulated_statistics();
  pool.deallocate(pool.allocate(500_MiB));
  void* const more = pool.try_allocate(700_MiB);
  EXPECT_NE(more, nullptr);
  const bool has_segments =
      std::is_same_v<TypeParam, pytorch_family::native> || std::is_same_v<TypeParam, torch_npu<>>;
  EXPECT_EQ(pool.statistics().num_alloc_retries, has_segments ? 1u : 0u)
      << "free pages of a range just serve";
  EXPECT_EQ(pool.statistics().num_ooms, 0u);
  pool.deallocate(kept), pool.deallocate(more);
}

TEST(peers_torch_npu, garbage_is_collected_above_a_tenth_of_the_device) {
  // A hundred arrays of 10 x 800 x 1200 x 3 floats, one after the other, then one five times as large. At the
  // end, only that one is reserved. The device has 1 GiB, so that the first is above the threshold.
  using recipe = torch_npu<"garbage_collection_threshold:0.1">;
  caching_allocator<recipe, simulated_device> pool(device_of(1_GiB));
  ASSERT_TRUE(set_memory_fraction(pool, 1.0));
  std::vector<void*> blocks;
  constexpr std::size_t one = std::size_t{10} * 800 * 1200 * 3 * sizeof(float);
  for (int i = 0; i < 9; ++i) blocks.push_back(pool.allocate(one));
  for (void* p : blocks) pool.deallocate(p);
  ASSERT_GT(pool.current_usage().reserved, 1_GiB / 2);
  void* const x = pool.allocate(5 * one);
  EXPECT_EQ(pool.current_usage().reserved, align_up(5 * one, 2_MiB));
  pool.deallocate(x);
}

TEST(peers_torch_host, finds_a_block_by_its_address) {
  caching_allocator<pinned, simulated_device> pool;
  constexpr stream_id stream{1};
  auto* const p = static_cast<std::byte*>(pool.allocate(100));
  EXPECT_TRUE(pool.record_stream(p, stream));
  EXPECT_TRUE(pool.record_stream(p, stream)) << "again, by who has an alias";
  EXPECT_FALSE(pool.try_record_stream(p + 1, stream)) << "a slice of which the block is not known";
  int elsewhere = 0;
  EXPECT_FALSE(pool.try_record_stream(&elsewhere, stream));
  EXPECT_DEATH((void)pool.record_stream(&elsewhere, stream), "record_stream: not the address of a live block")
      << "as PyTorch's ends in an error";
  pool.deallocate(p);
  pool.trim();
  EXPECT_FALSE(pool.try_record_stream(p, stream)) << "it is not there any more";
  void* const again = pool.allocate(100);
  pool.deallocate(again);
  EXPECT_EQ(pool.allocate(100), again) << "and a block that is free at once is reused";
}

TEST(peers_torch_host, a_block_in_a_running_copy_is_not_reused) {
  caching_allocator<pinned, simulated_device> pool;
  constexpr stream_id copies{1}, others{2};
  for (const stream_id by : {copies, others}) {
    void* const t = pool.allocate(4);
    pool.provider().submit(by, 50'000'000);
    (void)pool.record_stream(t, by);
    pool.deallocate(t);
    void* const too_soon = pool.allocate(4);
    EXPECT_NE(too_soon, t);
    pool.provider().synchronize(by);
    void* const then = pool.allocate(4);
    EXPECT_EQ(then, t);
    pool.deallocate(then), pool.deallocate(too_soon);
    pool.trim();
  }
}

TEST(peers_torch_host, statistics_count_allocations_and_frees) {
  // Three arrays of 10, 20 and 30 KiB floats take 64, 128 and 128 KiB. Then the first two are freed.
  caching_allocator<pinned, simulated_device> pool;
  const auto counted = [&pool] { return host_statistics::from<pinned>(pool.statistics()); };
  EXPECT_EQ(counted(), host_statistics{});
  std::vector<void*> live;
  std::int64_t bytes = 0;
  for (const auto& [floats, takes] : {std::pair{10_KiB, 64_KiB}, {20_KiB, 128_KiB}, {30_KiB, 128_KiB}}) {
    live.push_back(pool.allocate(floats * sizeof(float)));
    bytes += static_cast<std::int64_t>(takes);
    const auto count = static_cast<std::int64_t>(live.size());
    EXPECT_EQ(counted(), (host_statistics{.allocations = {count, count, count, 0},
                                          .allocated_bytes = {bytes, bytes, bytes, 0},
                                          .active_requests = {count, count, count, 0},
                                          .active_bytes = {bytes, bytes, bytes, 0},
                                          .num_host_alloc = live.size()}));
  }
  const auto before = counted();
  pool.trim();
  EXPECT_EQ(counted(), before) << "live blocks stay";
  pool.deallocate(live[0]), pool.deallocate(live[1]);
  EXPECT_EQ(counted().active_requests, (counter{1, 3, 3, 2}));
  EXPECT_EQ(counted().allocations, (counter{3, 3, 3, 0})) << "cached, and still taken";
  pool.trim();
  EXPECT_EQ(counted().allocations, (counter{1, 3, 3, 2}));
  EXPECT_EQ(counted().num_host_free, 2u);
  pool.reset_peak_statistics(), pool.reset_accumulated_statistics();
  EXPECT_EQ(counted().active_requests, (counter{1, 1, 0, 0}));
  EXPECT_EQ(counted().num_host_alloc, 0u);
}

TEST(peers_torch_settings, change_at_run_time_and_reject_errors) {
  // Divisions of powers of two are set and reset between requests of 83 MiB.
  configured<pytorch_family, caching_allocator<pytorch<>, simulated_device>> pool{
      config::pytorch::settings{}};
  const auto block_of = [&pool](std::size_t bytes) {
    const std::size_t before = pool.current_usage().allocated;
    void* const p = pool.allocate(bytes);
    const std::size_t size = pool.current_usage().allocated - before;
    pool.deallocate(p);
    pool.trim();
    return size;
  };
  EXPECT_EQ(block_of(83_MiB), 84_MiB);
  EXPECT_FALSE(pool.change("roundup_power2_divisions:4"));
  EXPECT_EQ(block_of(83_MiB), 96_MiB);
  EXPECT_FALSE(pool.change("roundup_power2_divisions:[64:8,128:4,256:2,512:1,1024:1,>:1]"));
  EXPECT_EQ(block_of(400_MiB), 512_MiB);
  EXPECT_FALSE(pool.change("garbage_collection_threshold:0.5,max_split_size_mb:40"));
  EXPECT_EQ(block_of(83_MiB), 84_MiB) << "what is not named is at its default again";
  for (const char* wrong : {"foo:1,bar:2", "garbage_collection_threshold:1.2", "max_split_size_mb:2",
                            "release_lock_on_cudamalloc:none", "pinned_use_cuda_host_register:none",
                            "pinned_num_register_threads:none", "pinned_num_register_threads:1024",
                            "roundup_power2_divisions:3", "max_split_size_mb", "backend:nothing"}) {
    EXPECT_TRUE(pool.change(wrong)) << wrong;
    EXPECT_EQ(pool.settings().max_split_size, 40_MiB) << wrong << " changed something";
  }
}

TEST(peers_torch_history, records_the_call_stacks_of_a_request_and_its_free) {
  caching_allocator<pytorch_family::native, simulated_device, extension::observer<history<>>> pool;
  {
    observer_of(pool).label("forward");
    const unique_block a = make_block(pool, 311), b = make_block(pool, 21_MiB);
    observer_of(pool).label("backward");
  }
  pool.trim();
  using action = allocator_event::action;
  std::map<action, int> seen;
  std::vector<std::size_t> sizes;
  observer_of(pool).for_each([&](const auto& entry) {
    ++seen[entry.event.what];
    if (entry.event.what == action::alloc) {
      sizes.push_back(entry.event.bytes);
      EXPECT_EQ(observer_of(pool).label_of(entry), "forward");
    } else if (entry.event.what == action::free_requested) {
      EXPECT_EQ(observer_of(pool).label_of(entry), "backward");
    }
  });
  EXPECT_EQ(seen[action::alloc], 2);
  EXPECT_EQ(seen[action::free_requested], 2);
  EXPECT_EQ(seen[action::free_completed], 2);
  EXPECT_EQ(seen[action::segment_alloc], 2);
  EXPECT_EQ(seen[action::segment_free], 2);
  EXPECT_EQ(sizes, (std::vector<std::size_t>{311, 21_MiB}));
}

}  // namespace
