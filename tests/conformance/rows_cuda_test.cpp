// SPDX-License-Identifier: Apache-2.0
// CUDA's virtual memory calls and memory pools, row by row of the compatibility matrix. An error code of the
// driver is a call here that fails and changes nothing.
#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include <gtest/gtest.h>

#include <tessera/interop/cuda_mempool.hpp>
#include <tessera/provider/host_pinned.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

namespace {

using namespace tessera;
using pool_attribute = cuda_mempool<caching_allocator<cuda_async, simulated_device>>::attribute;
using driver = cuda_mempool<caching_allocator<cuda_async, simulated_device>>;
constexpr stream_id a{1}, b{2};

char* bytes_at(void* p) { return static_cast<char*>(p); }

TEST(paddle_row, n52_memory_is_created_in_whole_granules_and_mapped_from_its_start) {
  simulated_device device;
  simulated_device::physical memory;
  EXPECT_FALSE(device.create(3_MiB, page_kind::normal, memory));
  ASSERT_TRUE(device.create(4_MiB, page_kind::normal, memory));
  void* const range = device.reserve(8_MiB, 2_MiB);
  // There is no offset: a mapping covers all of the memory. A smaller mapping is refused.
  EXPECT_FALSE(device.map(range, 2_MiB, memory));
  EXPECT_EQ(device.held().mapped, 0u);
  EXPECT_TRUE(device.map(range, 4_MiB, memory));
}

TEST(paddle_row, n53_mapping_over_a_mapping_fails_and_access_must_be_granted) {
  simulated_device device;
  simulated_device::physical first, second;
  ASSERT_TRUE(device.create(2_MiB, page_kind::normal, first) &&
              device.create(2_MiB, page_kind::normal, second));
  void* const range = device.reserve(4_MiB, 2_MiB);
  ASSERT_TRUE(device.map(range, 2_MiB, first));
  EXPECT_FALSE(device.map(range, 2_MiB, second));
  EXPECT_FALSE(device.can_use(range, 2_MiB));
  ASSERT_TRUE(device.grant(range, 2_MiB));
  EXPECT_TRUE(device.can_use(range, 2_MiB));
}

TEST(paddle_row, n54_mappings_and_ranges_are_removed_whole) {
  simulated_device device;
  simulated_device::physical memory;
  void* const range = device.reserve(8_MiB, 2_MiB);
  ASSERT_TRUE(device.create(4_MiB, page_kind::normal, memory) && device.map(range, 4_MiB, memory));
  EXPECT_FALSE(device.unmap(range, 2_MiB));
  EXPECT_FALSE(device.unmap(bytes_at(range) + 2_MiB, 2_MiB));
  EXPECT_EQ(device.held().mapped, 4_MiB);
  ASSERT_TRUE(device.unmap(range, 4_MiB));
  EXPECT_FALSE(device.unreserve(range, 4_MiB));
  EXPECT_EQ(device.held().reserved, 8_MiB);
  EXPECT_TRUE(device.unreserve(range, 8_MiB));
}

TEST(paddle_row, n55_memory_without_a_name_stays_until_it_is_unmapped) {
  simulated_device device;
  simulated_device::physical memory;
  void* const range = device.reserve(2_MiB, 2_MiB);
  ASSERT_TRUE(device.create(2_MiB, page_kind::normal, memory) && device.map(range, 2_MiB, memory) &&
              device.grant(range, 2_MiB));
  ASSERT_TRUE(device.destroy(memory));
  EXPECT_TRUE(device.can_use(range, 2_MiB));
  EXPECT_EQ(device.used(), 2_MiB);
  ASSERT_TRUE(device.unmap(range, 2_MiB));
  EXPECT_EQ(device.used(), 0u);
}

TEST(paddle_row, n55_data_is_intact_in_real_memory) {
  host_pinned device{host_pinned::options{.capacity = 64_MiB, .pin = host_pinned::pinning::never}};
  host_pinned::physical memory;
  auto* const range = static_cast<char*>(device.reserve(2_MiB, 2_MiB));
  ASSERT_TRUE(device.create(2_MiB, page_kind::normal, memory) && device.map(range, 2_MiB, memory));
  range[12345] = 42;
  ASSERT_TRUE(device.destroy(memory));
  EXPECT_EQ(range[12345], 42);
  EXPECT_TRUE(device.unmap(range, 2_MiB));
}

// Memory that is never exported stands for a handle of type NONE, which other processes cannot use.
TEST(paddle_row, n56_exported_memory_is_imported_and_destroyed_without_effect_on_the_exporter) {
  simulated_device device, other = device.another_process();
  simulated_device::physical memory, imported;
  simulated_device::shareable name;
  EXPECT_FALSE(other.import_memory(name, imported));
  ASSERT_TRUE(device.create(2_MiB, page_kind::normal, memory));
  ASSERT_TRUE(device.export_memory(memory, importers::any, name));
  ASSERT_TRUE(other.import_memory(name, imported));
  ASSERT_TRUE(other.destroy(imported));
  EXPECT_EQ(device.used(), 2_MiB);
  void* const range = device.reserve(2_MiB, 2_MiB);
  EXPECT_TRUE(device.map(range, 2_MiB, memory));
}

TEST(paddle_row, n57_threshold_0_releases_at_a_synchronization_and_unlimited_keeps) {
  driver pool;
  pool.free_async(pool.allocate_async(3_MiB, a), a);
  EXPECT_EQ(pool.get(pool_attribute::reserved_current), 4_MiB);
  EXPECT_TRUE(pool.synchronize(a));
  EXPECT_EQ(pool.get(pool_attribute::reserved_current), 0u);
  EXPECT_EQ(pool.provider().used(), 0u);

  ASSERT_TRUE(pool.set(pool_attribute::release_threshold, unlimited));
  pool.free_async(pool.allocate_async(3_MiB, a), a);
  EXPECT_TRUE(pool.synchronize(a));
  EXPECT_EQ(pool.get(pool_attribute::reserved_current), 4_MiB);
}

TEST(paddle_row, n58_trim_to_keeps_the_minimum_and_live_blocks) {
  driver pool;
  void* const p = pool.allocate_async(2_MiB, a);
  pool.free_async(pool.allocate_async(4_MiB, a), a);
  EXPECT_EQ(pool.get(pool_attribute::reserved_current), 6_MiB);
  for (const std::size_t least : {6_MiB, 7_MiB, unlimited}) {
    pool.trim_to(least);
    EXPECT_EQ(pool.get(pool_attribute::reserved_current), 6_MiB);
  }
  pool.provider().submit(a, 1'000'000'000);
  pool.free_async(p, a);
  const auto before = pool.provider().now_ns();
  pool.trim_to(0);  // the work before an earlier free is done; the work before this free is not known to be
  EXPECT_EQ(pool.get(pool_attribute::reserved_current), 2_MiB);
  EXPECT_LT(pool.provider().now_ns(), before + 1'000'000'000);
  pool.provider().advance(1'000'000'000);
  pool.trim_to(0);
  EXPECT_EQ(pool.get(pool_attribute::reserved_current), 0u);
}

/// Frees a block on stream A after long work. Optionally, B waits for an event of A. Returns whether B gets
/// the same block.
bool crosses(driver& pool, bool waits) {
  void* const p = pool.allocate_async(2_MiB, a);
  pool.provider().submit(a, 1'000'000'000);
  pool.free_async(p, a);
  if (waits) {
    simulated_device::event freed;
    EXPECT_TRUE(pool.provider().record(a, freed));
    EXPECT_TRUE(pool.provider().make_wait(b, freed));
  }
  const auto before = pool.provider().now_ns();
  void* const q = pool.allocate_async(2_MiB, b);
  EXPECT_LT(pool.provider().now_ns(), before + 1'000'000'000);  // no wait on the host
  pool.free_async(q, b);
  EXPECT_STREQ(pool.audit(), nullptr);
  return q == p;
}
void switch_off(driver& pool, std::initializer_list<pool_attribute> which) {
  for (const pool_attribute what : which) ASSERT_TRUE(pool.set(what, 0));
}

TEST(paddle_row, n59_a_block_crosses_to_a_stream_that_waits_for_the_free) {
  driver pool;
  switch_off(pool, {pool_attribute::allow_opportunistic, pool_attribute::allow_internal_dependencies});
  EXPECT_TRUE(crosses(pool, true));
  driver unordered;
  switch_off(unordered, {pool_attribute::allow_opportunistic, pool_attribute::allow_internal_dependencies});
  EXPECT_FALSE(crosses(unordered, false));
}
TEST(paddle_row, n59_with_all_three_rules_off_only_the_same_stream_reuses) {
  driver pool;
  switch_off(pool, {pool_attribute::follow_event_dependencies, pool_attribute::allow_opportunistic,
                    pool_attribute::allow_internal_dependencies});
  EXPECT_FALSE(crosses(pool, true));
  void* const p = pool.allocate_async(2_MiB, a);
  pool.provider().submit(a, 1'000'000'000);
  pool.free_async(p, a);
  EXPECT_EQ(pool.allocate_async(2_MiB, a), p);
}

// There is no default pool to destroy and no imported pool. Of the row, the attributes remain.
TEST(paddle_row, n60_peaks_can_be_reset_to_zero_only) {
  driver pool;
  void* const p = pool.allocate_async(3_MiB, a);
  pool.free_async(pool.allocate_async(5_MiB, a), a);
  EXPECT_TRUE(pool.synchronize(a));
  EXPECT_EQ(pool.get(pool_attribute::reserved_current), 4_MiB);
  EXPECT_EQ(pool.get(pool_attribute::reserved_high), 10_MiB);
  EXPECT_EQ(pool.get(pool_attribute::used_current), 3_MiB);
  EXPECT_EQ(pool.get(pool_attribute::used_high), 8_MiB);
  for (const pool_attribute what : {pool_attribute::reserved_high, pool_attribute::used_high}) {
    EXPECT_FALSE(pool.set(what, 1));
    EXPECT_FALSE(pool.set(what, pool.get(what)));
  }
  for (const pool_attribute what : {pool_attribute::reserved_current, pool_attribute::used_current})
    EXPECT_FALSE(pool.set(what, 0));
  EXPECT_EQ(pool.get(pool_attribute::reserved_high), 10_MiB);
  EXPECT_TRUE(pool.set(pool_attribute::reserved_high, 0));
  EXPECT_TRUE(pool.set(pool_attribute::used_high, 0));
  EXPECT_EQ(pool.get(pool_attribute::reserved_high), 4_MiB);
  EXPECT_EQ(pool.get(pool_attribute::used_high), 3_MiB);
  pool.free_async(p, a);
}

}  // namespace
