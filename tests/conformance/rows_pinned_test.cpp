// SPDX-License-Identifier: Apache-2.0
// The rows of the compatibility matrix about the pinned-memory caches of PyTorch and torch_npu.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/config/torch_npu_conf.hpp>
#include <tessera/observe/host_statistics.hpp>
#include <tessera/provider/host_pinned.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

namespace {

using namespace tessera;
using cache = caching_allocator<pinned, simulated_device>;
using expandable = caching_allocator<torch_npu_family::pinned_expandable, simulated_device>;

cache configured(const config::torch_npu::settings& settings) {
  return cache(simulated_device{}, pinned::configured(settings));
}
host_statistics statistics_of(const cache& pool) { return host_statistics::from<pinned>(pool.statistics()); }
host_statistics statistics_of(const expandable& pool) {
  return host_statistics::from<torch_npu_family::pinned_expandable>(pool.statistics());
}
std::int64_t allocated_bytes(const auto& pool) { return statistics_of(pool).allocated_bytes.current; }
std::int64_t active_bytes(const auto& pool) { return statistics_of(pool).active_bytes.current; }
std::int64_t bytes(std::size_t count) { return static_cast<std::int64_t>(count); }

TEST(torch_row, n105_two_arrays_of_floats_take_two_powers_of_two) {
  cache pool;
  ASSERT_NE(pool.allocate(10 * 1024 * sizeof(float)), nullptr);
  EXPECT_EQ(allocated_bytes(pool), 65'536);
  EXPECT_EQ(statistics_of(pool).allocations.current, 1);
  ASSERT_NE(pool.allocate(20 * 1024 * sizeof(float)), nullptr);
  EXPECT_EQ(allocated_bytes(pool), 65'536 + 131'072);
  EXPECT_EQ(statistics_of(pool).allocations.current, 2);
  EXPECT_EQ(statistics_of(pool).active_requests.current, 2);
  EXPECT_EQ(statistics_of(pool).num_host_alloc, 2u);
}

TEST(torch_row, n106_the_same_size_again_after_a_free_has_the_same_address) {
  cache pool;
  void* const first = pool.allocate(1'000'000);
  pool.deallocate(first);
  EXPECT_EQ(pool.allocate(1'000'000), first);
  EXPECT_EQ(statistics_of(pool).num_host_alloc, 1u);
}

TEST(torch_row, n107_round_threshold_64M_request_80M_takes_80M) {
  cache pool = configured({.pinned_max_round_threshold = 64_MiB});
  ASSERT_NE(pool.allocate(80_MiB), nullptr);
  EXPECT_EQ(allocated_bytes(pool), bytes(80_MiB));
}

TEST(torch_row, n108_round_threshold_128M_request_10M_takes_16M) {
  cache pool = configured({.pinned_max_round_threshold = 128_MiB});
  ASSERT_NE(pool.allocate(10_MiB), nullptr);
  EXPECT_EQ(allocated_bytes(pool), bytes(16_MiB));
}

TEST(torch_row, n109_cached_limit_32M_a_freed_block_of_64M_is_released_at_once) {
  cache pool = configured({.pinned_max_cached_size = 32_MiB});
  void* const large = pool.allocate(64_MiB);
  EXPECT_EQ(allocated_bytes(pool), bytes(64_MiB));
  pool.deallocate(large);
  EXPECT_EQ(allocated_bytes(pool), 0);
  pool.deallocate(pool.allocate(32_MiB));
  EXPECT_EQ(allocated_bytes(pool), bytes(32_MiB));
}

TEST(torch_row, n110_round_256M_cached_128M_request_130M_is_exact_and_released) {
  cache pool = configured({.pinned_max_round_threshold = 256_MiB, .pinned_max_cached_size = 128_MiB});
  void* const exact = pool.allocate(130_MiB);
  EXPECT_EQ(allocated_bytes(pool), bytes(130_MiB));
  pool.deallocate(exact);
  EXPECT_EQ(allocated_bytes(pool), 0);
}

// PyTorch puts sizes that are not rounded into buckets of powers of two, and takes any block of the bucket.
TEST(torch_row, n110_a_too_small_block_of_the_same_bucket_is_never_handed_out) {
  cache pool = configured({.pinned_max_round_threshold = 64_MiB});
  void* const small = pool.allocate(70_MiB);
  pool.deallocate(small);
  void* const large = pool.allocate(100_MiB);
  EXPECT_NE(large, small);
  EXPECT_TRUE(pool.provider().can_use(large, 100_MiB));
  EXPECT_EQ(active_bytes(pool), bytes(100_MiB));
  EXPECT_EQ(allocated_bytes(pool), bytes(170_MiB));
  pool.deallocate(large);
  EXPECT_EQ(active_bytes(pool), 0);
  EXPECT_EQ(pool.allocate(65_MiB), small);
  EXPECT_EQ(pool.allocate(90_MiB), large);
  EXPECT_EQ(active_bytes(pool), bytes(170_MiB));
}

TEST(torch_row, n111_npu_expandable_64M_maps_80M_and_smaller_blocks_share_it) {
  expandable pool;
  void* const whole = pool.allocate(64_MiB);
  EXPECT_EQ(active_bytes(pool), bytes(64_MiB + 512));
  EXPECT_EQ(allocated_bytes(pool), bytes(80_MiB));
  pool.deallocate(whole);
  EXPECT_EQ(active_bytes(pool), 0);
  EXPECT_EQ(allocated_bytes(pool), bytes(80_MiB));
  for (std::size_t size : {4_MiB, 8_MiB, 16_MiB}) ASSERT_NE(pool.allocate(size), nullptr);
  EXPECT_EQ(active_bytes(pool), bytes(28_MiB + 1536));
  EXPECT_EQ(allocated_bytes(pool), bytes(80_MiB));
  EXPECT_EQ(statistics_of(pool).active_requests, counter{});
  EXPECT_EQ(statistics_of(pool).num_host_alloc, 0u);
}

TEST(torch_row, n112_npu_expandable_freed_blocks_serve_a_larger_one_and_whole_pages_are_released) {
  expandable pool;
  void* const first = pool.allocate(40_MiB);
  void* const second = pool.allocate(40_MiB);
  pool.deallocate(first);
  pool.deallocate(second);
  EXPECT_EQ(allocated_bytes(pool), bytes(100_MiB));
  EXPECT_EQ(pool.allocate(64_MiB), first);
  EXPECT_EQ(allocated_bytes(pool), bytes(100_MiB));
  pool.trim();
  EXPECT_EQ(allocated_bytes(pool), bytes(80_MiB));
}

TEST(torch_row, n113_npu_expandable_a_block_in_a_pending_copy_stays_until_that_is_done) {
  expandable pool;
  constexpr stream_id copies{7};
  void* const used = pool.allocate(64_MiB);
  ASSERT_TRUE(pool.record_stream(used, copies));
  pool.provider().submit(copies, 1'000'000);
  pool.deallocate(used);
  pool.trim_without_waiting();
  EXPECT_EQ(active_bytes(pool), bytes(64_MiB + 512));
  EXPECT_EQ(allocated_bytes(pool), bytes(80_MiB));
  EXPECT_EQ(pool.provider().calls().wait, 0u);
  pool.provider().advance(1'000'000);
  pool.trim_without_waiting();
  EXPECT_EQ(active_bytes(pool), 0);
  EXPECT_EQ(allocated_bytes(pool), 0);
}

/// The data that a running copy reads from a freed block, while others write to their blocks.
template <typename Recipe>
void copy_of_a_freed_block_is_whole() {
  caching_allocator<Recipe, host_pinned> pool{
      host_pinned{host_pinned::options{.capacity = 128_MiB, .pin = host_pinned::pinning::never}}};
  const stream_id copies = pool.provider().create_stream();
  std::atomic<bool> may_copy = false;
  std::vector<unsigned char> copy(4_MiB);
  auto* const used = static_cast<unsigned char*>(pool.allocate(4_MiB, copies));
  std::memset(used, 1, copy.size());
  ASSERT_TRUE(pool.record_stream(used, copies));
  pool.provider().submit(copies, [&] {
    while (!may_copy) std::this_thread::yield();
    std::memcpy(copy.data(), used, copy.size());
  });
  pool.deallocate(used);
  pool.trim_without_waiting();
  for (int i = 0; i < 4; ++i) {
    void* const next = pool.allocate(4_MiB, copies);
    EXPECT_NE(next, used);
    std::memset(next, 2, copy.size());
  }
  may_copy = true;
  pool.provider().synchronize(copies);
  EXPECT_EQ(copy, std::vector<unsigned char>(4_MiB, 1));
  EXPECT_EQ(pool.allocate(4_MiB), used);
}

TEST(torch_row, n113_a_running_copy_reads_its_block_whole_in_host_memory) {
  copy_of_a_freed_block_is_whole<pinned>();
  copy_of_a_freed_block_is_whole<pinned_packed>();
  copy_of_a_freed_block_is_whole<torch_npu_family::pinned_expandable>();
}

}  // namespace
