// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <tessera/observe/host_statistics.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

namespace {

using namespace tessera;

TEST(host_statistics, counts_acquired_and_active_memory) {
  caching_allocator<pinned, simulated_device> pool;
  void* const first = pool.allocate(40'000);
  void* const second = pool.allocate(80'000);
  pool.deallocate(first);
  ASSERT_TRUE(pool.record_stream(second, stream_id{1}));
  pool.provider().submit(stream_id{1}, 1'000'000);
  pool.deallocate(second);
  host_statistics result = host_statistics::from<pinned>(pool.statistics());
  EXPECT_EQ(result.allocations, (counter{2, 2, 2, 0}));
  EXPECT_EQ(result.allocated_bytes, (counter{196'608, 196'608, 196'608, 0}));
  EXPECT_EQ(result.active_requests, (counter{1, 2, 2, 1}));
  EXPECT_EQ(result.active_bytes, (counter{131'072, 196'608, 196'608, 65'536}));
  EXPECT_EQ(result.num_host_alloc, 2u);
  EXPECT_EQ(result.num_host_free, 0u);
  pool.trim();
  result = host_statistics::from<pinned>(pool.statistics());
  EXPECT_EQ(result.allocations, (counter{0, 2, 2, 2}));
  EXPECT_EQ(result.active_bytes.current, 0);
  EXPECT_EQ(result.num_host_free, 2u);
}

TEST(host_statistics, counts_only_bytes_if_pages_are_mapped) {
  caching_allocator<torch_npu_family::pinned_expandable, simulated_device> pool;
  void* const p = pool.allocate(64_MiB);
  const host_statistics result =
      host_statistics::from<torch_npu_family::pinned_expandable>(pool.statistics());
  host_statistics expected;
  expected.allocated_bytes = {83'886'080, 83'886'080, 83'886'080, 0};
  expected.active_bytes = {67'109'376, 67'109'376, 67'109'376, 0};
  EXPECT_EQ(result, expected);
  pool.deallocate(p);
}

}  // namespace
