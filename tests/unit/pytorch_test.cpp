// SPDX-License-Identifier: Apache-2.0
// The pytorch recipe against facts about PyTorch's native allocator.
#include <cstddef>

#include <gtest/gtest.h>

#include <tessera/interop/memory_fraction.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

namespace {

using namespace tessera;
using torch = caching_allocator<pytorch<>, simulated_device>;

simulated_device device_of(std::size_t capacity) {
  return simulated_device{simulated_device::options{.capacity = capacity}};
}

std::size_t live(const torch& pool) { return pool.current_usage().allocated; }
std::size_t reserved(const torch& pool) { return pool.current_usage().reserved; }

struct size_case {
  std::size_t requested, block, reserved;
};
class sizes : public testing::TestWithParam<size_case> {};

TEST_P(sizes, of_block_and_segment) {
  torch pool;
  void* p = pool.allocate(GetParam().requested);
  EXPECT_EQ(live(pool), GetParam().block);
  EXPECT_EQ(reserved(pool), GetParam().reserved);
  EXPECT_EQ(pool.current_usage().requested, GetParam().requested);
  pool.deallocate(p);
  EXPECT_EQ(live(pool), 0u);
  EXPECT_EQ(pool.statistics().all.inactive_split.current, 0);
  pool.trim();
  EXPECT_EQ(reserved(pool), 0u);
}
INSTANTIATE_TEST_SUITE_P(
    pytorch, sizes,
    testing::Values(size_case{1, 512, 2_MiB}, size_case{480, 512, 2_MiB}, size_case{512, 512, 2_MiB},
                    size_case{513, 1024, 2_MiB}, size_case{1025, 1536, 2_MiB}, size_case{1_MiB, 1_MiB, 2_MiB},
                    size_case{1_MiB + 1, 1_MiB + 512, 20_MiB}, size_case{5_MiB, 5_MiB, 20_MiB},
                    size_case{10_MiB - 512, 10_MiB - 512, 20_MiB}, size_case{10_MiB, 10_MiB, 10_MiB},
                    size_case{10_MiB + 1, 10_MiB + 512, 12_MiB},
                    size_case{19_MiB, 20_MiB, 20_MiB},  // 1 MiB of rest is not split off
                    size_case{18_MiB + 512_KiB, 18_MiB + 512_KiB, 20_MiB}, size_case{33_MiB, 34_MiB, 34_MiB},
                    size_case{160_MiB, 160_MiB, 160_MiB}));

TEST(pytorch, counts_inactive_split) {
  torch pool;
  void* p = pool.allocate(5_MiB);
  EXPECT_EQ(pool.statistics().all.inactive_split.current, 1);
  EXPECT_EQ(pool.statistics().all.inactive_split_bytes.current, std::int64_t{15_MiB});
  void* q = pool.allocate(5_MiB);
  EXPECT_EQ(pool.statistics().pool[1].inactive_split_bytes.current, std::int64_t{10_MiB});
  pool.deallocate(p);
  EXPECT_EQ(pool.statistics().all.inactive_split.current, 2);
  pool.deallocate(q);
  EXPECT_EQ(pool.statistics().all.inactive_split.current, 0);
  EXPECT_EQ(pool.statistics().all.inactive_split_bytes.freed,
            pool.statistics().all.inactive_split_bytes.allocated);
}

TEST(pytorch, keeps_a_block_pending_until_the_recorded_stream_completes) {
  torch pool;
  void* p = pool.allocate(1_KiB);
  ASSERT_TRUE(pool.record_stream(p, stream_id{1}));
  ASSERT_TRUE(pool.record_stream(p, stream_id{1}));
  pool.provider().submit(stream_id{1}, 1'000'000'000);
  pool.deallocate(p);
  EXPECT_EQ(pool.current_usage().pending(), 1_KiB);
  EXPECT_EQ(pool.current_usage().allocated, 0u);
  EXPECT_EQ(pool.statistics().all.active_bytes.current, std::int64_t{1_KiB});
  EXPECT_EQ(pool.statistics().all.allocated_bytes.current, 0);
  EXPECT_EQ(pool.provider().calls().record, 1u);
  void* q = pool.allocate(1_KiB);
  EXPECT_NE(q, p);
  pool.provider().advance(1'000'000'000);
  EXPECT_EQ(pool.allocate(1_KiB), p);
  EXPECT_EQ(pool.current_usage().pending(), 0u);
  EXPECT_STREQ(pool.audit(), nullptr);
}

TEST(pytorch, recovers_by_emptying_the_cache) {
  torch pool{device_of(100_MiB)};
  void* half = pool.allocate(50_MiB);
  EXPECT_EQ(pool.try_allocate(60_MiB), nullptr);
  EXPECT_EQ(pool.statistics().num_ooms, 1u);
  EXPECT_EQ(pool.statistics().num_alloc_retries, 1u);
  pool.deallocate(half);
  EXPECT_NE(pool.try_allocate(60_MiB), nullptr);
  EXPECT_EQ(pool.statistics().num_alloc_retries, 2u);
  EXPECT_EQ(reserved(pool), 60_MiB);
}

// A free block of 16 MiB exists only after the allocator waited for the other stream. Growth would take a
// segment of that size.
TEST(pytorch, searches_free_blocks_once) {
  torch pool{device_of(42_MiB)};
  (void)pool.allocate(4_MiB);
  void* const waits = pool.allocate(14_MiB);
  (void)pool.allocate(19_MiB);
  pool.provider().submit(stream_id{1}, 1'000'000);
  ASSERT_TRUE(pool.record_stream(waits, stream_id{1}));
  pool.deallocate(waits);
  EXPECT_EQ(pool.try_allocate(15_MiB), nullptr);
  EXPECT_EQ(pool.current_usage().pending(), 0u);
  EXPECT_EQ(pool.allocate(15_MiB), waits) << "the next request finds it";
  EXPECT_STREQ(pool.audit(), nullptr);
}

TEST(pytorch, releases_one_fitting_oversize_block_before_everything) {
  torch pool{device_of(120_MiB), {.split = {.max = 30_MiB}}};
  void* a = pool.allocate(40_MiB);
  void* b = pool.allocate(40_MiB, stream_id{1});
  void* c = pool.allocate(2_MiB);
  pool.deallocate(a);
  pool.deallocate(b);
  pool.deallocate(c);
  ASSERT_NE(pool.try_allocate(62_MiB), nullptr);  // 40 MiB are not enough, so recovery tries all steps
  EXPECT_EQ(reserved(pool), 62_MiB);
  EXPECT_EQ(pool.statistics().num_alloc_retries, 1u);
  pool.trim();
  void* d = pool.allocate(40_MiB, stream_id{2});
  pool.deallocate(d);
  ASSERT_NE(pool.try_allocate(20_MiB, stream_id{3}),
            nullptr);  // the device was full; stream 3 has nothing to release
  EXPECT_EQ(pool.statistics().num_alloc_retries, 2u);
}

TEST(pytorch, has_no_blocks_above_a_limit_that_no_block_reaches) {
  // The largest number of MiB that does not mean "no bound": 1 MiB below 2^64 bytes.
  using nearly_unlimited = pytorch<"max_split_size_mb:17592186044415">;
  caching_allocator<nearly_unlimited, simulated_device> pool{
      simulated_device{simulated_device::options{.capacity = 30_MiB}}};
  void* const first = pool.allocate(15_MiB);
  EXPECT_EQ(pool.try_allocate(20_MiB), nullptr) << "after it looked for oversize blocks to give back";
  EXPECT_STREQ(pool.audit(), nullptr);
  pool.deallocate(first);
  EXPECT_NE(pool.try_allocate(20_MiB), nullptr) << "after it gave back all";
}

TEST(pytorch, collects_memory_older_than_average_above_the_threshold) {
  torch pool{device_of(100_MiB), {.eviction = {.threshold = percent(50)}}};
  ASSERT_TRUE(set_memory_fraction(pool, 1));
  void* old_one = pool.allocate(20_MiB);
  void* young_one = pool.allocate(22_MiB);
  pool.deallocate(old_one);
  for (int i = 0; i < 6; ++i)
    pool.deallocate(pool.allocate(18_MiB));  // ages the pool; the oldest block is reused each time
  pool.deallocate(young_one);
  EXPECT_EQ(reserved(pool), 42_MiB);
  (void)pool.allocate(30_MiB);  // a miss, but not above the threshold yet
  EXPECT_EQ(reserved(pool), 72_MiB);
  (void)pool.allocate(24_MiB);  // a miss above the threshold: both are idle and 22 MiB must be released
  EXPECT_LE(reserved(pool), 100_MiB);
  EXPECT_EQ(pool.statistics().num_ooms, 0u);
  EXPECT_GT(pool.statistics().num_device_free, 0u);
  EXPECT_EQ(pool.statistics().num_alloc_retries, 0u);
}

TEST(pytorch, respects_a_limit_below_the_device) {
  torch pool{device_of(1_GiB), {.growth = {.limit = 40_MiB}}};
  EXPECT_NE(pool.try_allocate(30_MiB), nullptr);
  EXPECT_EQ(pool.try_allocate(20_MiB), nullptr);
  EXPECT_EQ(pool.provider().calls().refused, 0u);
  EXPECT_EQ(pool.current_usage().limit, 40_MiB);
  pool.policies().growth.limit = unlimited;
  EXPECT_NE(pool.try_allocate(20_MiB), nullptr);
}

TEST(pytorch, rejects_at_once_if_the_limit_refused) {
  using strict = with<pytorch<>, fail_fast<recover_by_releasing_oversize, true>>;
  caching_allocator<strict, simulated_device> pool{device_of(1_GiB), {.growth = {.limit = 40_MiB}}};
  void* p = pool.allocate(30_MiB);
  pool.deallocate(p);
  EXPECT_EQ(pool.try_allocate(36_MiB), nullptr);
  EXPECT_EQ(pool.statistics().num_oom_rejections, 1u);
  EXPECT_EQ(pool.statistics().num_alloc_retries, 0u);
  EXPECT_EQ(pool.current_usage().cached, 30_MiB);
}

}  // namespace
