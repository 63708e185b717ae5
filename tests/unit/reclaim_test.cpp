// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/observe/inspect.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

#include "../by_day.hpp"

namespace {

using namespace tessera;

TEST(min_considered, is_the_smallest_size_that_a_policy_considers) {
  const usage now{.cached = 3_MiB, .reserved = 10_MiB, .limit = 1_GiB};
  for (const std::size_t kept :
       {std::size_t{0}, std::size_t{64}, std::size_t{128}, 4_MiB, 5_MiB - 64, 3_GiB}) {
    const evict_at_free<tunable(unlimited)> policy{.threshold = kept};
    EXPECT_EQ(detail::min_candidate_size(policy, now), kept + 64) << kept;
  }
  EXPECT_EQ(detail::min_candidate_size(evict_at_free<>{}, now), min_alignment);
  EXPECT_GT(detail::min_candidate_size(evict_never{}, now), max_request);
}

TEST(trim, stops_at_the_bytes_to_keep) {
  caching_allocator<power_of_two, simulated_device> pool;
  std::vector<void*> used;
  for (int i = 0; i < 4; ++i) used.push_back(pool.allocate(1_MiB));
  for (void* p : used) pool.deallocate(p);
  pool.trim(3_MiB);
  EXPECT_EQ(pool.current_usage().reserved, 3_MiB);
  pool.trim(2_MiB + 1);
  EXPECT_EQ(pool.current_usage().reserved, 2_MiB);
  pool.trim(2_MiB);
  EXPECT_EQ(pool.current_usage().reserved, 2_MiB);
  pool.trim();
  EXPECT_EQ(pool.current_usage().reserved, 0u);
}

// Four idle segments, of which the older two are at least as old as the average.
TEST(evict_idle, releases_no_more_than_requested) {
  using recipe = with<passthrough, split_never<block_fit::exact>, evict_idle_above<percent(50)>>;
  caching_allocator<recipe, simulated_device> pool{
      simulated_device{simulated_device::options{.capacity = 100_MiB}}};
  pool.policies().growth.limit = 40_MiB;
  std::vector<void*> used;
  for (int i = 0; i < 4; ++i) used.push_back(pool.allocate(5_MiB));
  for (void* p : used) pool.deallocate(p);
  EXPECT_EQ(pool.current_usage().reserved, 20_MiB);
  (void)pool.allocate(6_MiB);  // up to the threshold and not above it: nothing is released
  EXPECT_EQ(pool.current_usage().reserved, 26_MiB);
  (void)pool.allocate(7_MiB);
  EXPECT_LT(pool.current_usage().reserved, 33_MiB);
  EXPECT_STREQ(pool.audit(), nullptr);
}

// Two oversize blocks are just enough together; small blocks stay.
TEST(recovery, releases_oversize_blocks_that_are_enough_and_nothing_else) {
  caching_allocator<with<pytorch<>, split_below<16_MiB, 1_MiB>>, simulated_device> pool{
      simulated_device{simulated_device::options{.capacity = 62_MiB}}};
  void* const small = pool.allocate(1);
  void* const first = pool.allocate(20_MiB);
  void* const second = pool.allocate(20_MiB);
  pool.deallocate(small);
  pool.deallocate(first);
  pool.deallocate(second);
  EXPECT_NE(pool.try_allocate(40_MiB), nullptr);
  EXPECT_EQ(pool.current_usage().reserved, 42_MiB);
  EXPECT_EQ(pool.statistics().num_alloc_retries, 0u) << "the cache was not emptied";
  EXPECT_EQ(pool.statistics().oversize_segments.current, 1);
  EXPECT_EQ(pool.statistics().oversize_allocations.current, 1);
}

TEST(metadata_bytes, shrinks_once_streams_and_blocks_are_gone) {
  caching_allocator<pytorch<>, simulated_device> pool;
  std::vector<void*> used;
  for (int i = 0; i < 3000; ++i) used.push_back(pool.allocate(512));
  const std::size_t of_blocks = pool.metadata_bytes();
  EXPECT_GT(of_blocks, 3000 * sizeof(detail::block));
  for (std::uint64_t i = 0; i < 3000; ++i) ASSERT_TRUE(pool.record_stream(used[i], stream_id{i + 1}));
  const std::size_t most = pool.metadata_bytes();
  EXPECT_GT(most, of_blocks + 3000 * 4 * sizeof(void*)) << "each use is described";
  EXPECT_LT(most, of_blocks + 1_MiB);
  for (void* p : used) pool.deallocate(p);
  pool.trim();
  EXPECT_EQ(pool.current_usage().reserved, 0u);
  EXPECT_LT(pool.metadata_bytes(), most / 10);
}
TEST(metadata_bytes, counts_blocks_and_segments) {
  caching_allocator<passthrough, simulated_device> pool;
  for (int i = 0; i < 10'000; ++i) (void)pool.allocate(512);
  EXPECT_GT(pool.metadata_bytes(), 10'000 * (sizeof(detail::block) + sizeof(detail::segment)));
}

template <typename Recipe>
class footprint_of : public testing::Test {};
using recipes =
    types_by_day<3, pytorch<>, stitched, cuda_async, pytorch_family::expandable, paddle_family::auto_growth>;
TYPED_TEST_SUITE(footprint_of, recipes);

TYPED_TEST(footprint_of, nothing_is_that_of_empty_tables) {
  caching_allocator<TypeParam, simulated_device> pool;
  for (std::uint64_t i = 0; i < 100; ++i) {
    void* const p = pool.allocate(20_MiB, stream_id{i % 7});
    ASSERT_TRUE(pool.record_stream(p, stream_id{i % 11}));
    pool.deallocate(p);
  }
  EXPECT_GT(pool.metadata_bytes(), 4_KiB);
  pool.trim();
  EXPECT_EQ(pool.current_usage().reserved, 0u);
  EXPECT_LT(pool.metadata_bytes(), 4_KiB) << "less than the first chunk of anything";
}

TEST(metadata_bytes, shrinks_once_pages_are_gone) {
  caching_allocator<stitched, simulated_device> pool;
  pool.policies().growth.rest_parts = 1'000'000;
  void* const p = pool.allocate(20_GiB);
  const std::size_t most = pool.metadata_bytes();
  EXPECT_GT(most, 10'000 * 6 * sizeof(void*)) << "each page is described, and in a table";
  pool.deallocate(p);
  pool.trim();
  EXPECT_EQ(pool.current_usage().reserved, 0u);
  EXPECT_LT(pool.metadata_bytes(), most / 10);
}

}  // namespace
