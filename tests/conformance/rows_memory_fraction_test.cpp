// SPDX-License-Identifier: Apache-2.0
// The rows of the compatibility matrix about a fraction of the device's memory.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/caching_allocator.hpp>
#include <tessera/detail/blocks/introspection.hpp>
#include <tessera/interop/memory_fraction.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/recipe/pytorch_family.hpp>
#include <tessera/recipe/torch_npu.hpp>

namespace {

using namespace tessera;

using cuda = caching_allocator<pytorch_family::native, simulated_device>;
using npu = caching_allocator<torch_npu_family::native, simulated_npu>;

template <typename Provider = simulated_device>
Provider of_capacity(std::size_t bytes) {
  return Provider{simulated_device::options{.capacity = bytes}};
}

TEST(torch_row, n054_the_memory_fraction_is_the_one_that_was_set) {
  cuda torch;
  npu ascend;
  EXPECT_EQ(memory_fraction(torch), 1.0);
  for (const double share : {0.0, 0.5, 1.0, 0.1, 0.95}) {
    ASSERT_TRUE(set_memory_fraction(torch, share) && set_memory_fraction(ascend, share));
    EXPECT_EQ(memory_fraction(torch), share);
    EXPECT_EQ(memory_fraction(ascend), share);
  }
  constexpr config::torch_npu::settings half{.memory_fraction = percent(50)};
  caching_allocator<torch_npu_family::under<half>, simulated_npu> begun;
  EXPECT_EQ(memory_fraction(begun), 0.5);
}

TEST(torch_row, n059_a_memory_fraction_out_of_range_is_an_error_that_changes_nothing) {
  cuda pool{of_capacity(1_GiB)};
  ASSERT_TRUE(set_memory_fraction(pool, 0.25));
  for (const double share : {-0.1, 2.0, std::nan(""), std::numeric_limits<double>::infinity(), -1e-300,
                             std::nextafter(1.0, 2.0)}) {
    EXPECT_FALSE(set_memory_fraction(pool, share)) << share;
    EXPECT_EQ(memory_fraction(pool), 0.25);
    EXPECT_EQ(pool.current_usage().limit, 256_MiB);
  }
}

TEST(torch_row, n060_half_of_the_device_is_not_passed) {
  cuda pool{of_capacity(80_GiB)};
  ASSERT_TRUE(set_memory_fraction(pool, 0.5));
  const std::size_t total = pool.provider().capacity();
  void* const most = pool.try_allocate(static_cast<std::size_t>(0.499 * static_cast<double>(total)));
  ASSERT_NE(most, nullptr);
  pool.deallocate(most);
  pool.trim();
  ASSERT_NE(pool.try_allocate(1), nullptr);
  EXPECT_EQ(pool.try_allocate(total / 2), nullptr) << "2 MiB of the half are taken";
  EXPECT_EQ(pool.statistics().num_ooms, 1u);
}

TEST(torch_row, n061_npu_a_fifth_is_too_much_for_a_tenth) {
  npu pool{of_capacity<simulated_npu>(64_GiB)};
  ASSERT_TRUE(set_memory_fraction(pool, 0.1));
  EXPECT_EQ(pool.try_allocate(64_GiB / 5), nullptr);
  EXPECT_EQ(pool.provider().calls().acquire, 0u);
  EXPECT_NE(pool.try_allocate(64_GiB / 20), nullptr);
}

// In the row, one of the 40M is in an expandable segment, which release_available ignores. Here one is on
// another stream, which it ignores too.
TEST(torch_row, n063_if_one_streams_blocks_are_not_enough_everything_is_flushed) {
  cuda pool{of_capacity(480_MiB), {.split = {.max = 40_MiB}}};
  ASSERT_TRUE(set_memory_fraction(pool, 0.25));
  std::vector<void*> held{pool.allocate(40_MiB), pool.allocate(40_MiB, stream_id{1}), pool.allocate(40_MiB)};
  EXPECT_EQ(pool.try_allocate(40_MiB), nullptr);
  EXPECT_EQ(pool.current_usage().reserved, 120_MiB);
  for (void* p : held) pool.deallocate(p);
  pool.reset_accumulated_statistics();
  EXPECT_NE(pool.try_allocate(120_MiB), nullptr);
  EXPECT_EQ(pool.statistics().num_alloc_retries, 1u) << "80 MiB of the stream were not enough";
  EXPECT_EQ(pool.statistics().num_device_free, 3u);
  EXPECT_EQ(pool.current_usage().reserved, 120_MiB);
}

// In the row, the first 40M are in an ordinary segment. Here they are in the range of another stream.
TEST(torch_row, n064_collection_leaves_the_young_pages_and_the_range_grows_beside_them) {
  caching_allocator<pytorch_family::expandable, simulated_device> pool{
      of_capacity(480_MiB), {.eviction = {.threshold = percent(50)}}};
  ASSERT_TRUE(set_memory_fraction(pool, 0.25));
  pool.deallocate(pool.allocate(40_MiB, stream_id{1}));
  void* const young_one = pool.allocate(40_MiB);
  pool.deallocate(young_one);
  for (int i = 0; i < 4; ++i) pool.deallocate(pool.allocate(40_MiB));
  ASSERT_EQ(pool.current_usage().reserved, 80_MiB) << "20 MiB above the threshold";
  EXPECT_EQ(pool.try_allocate(80_MiB), young_one);
  EXPECT_EQ(pool.current_usage().reserved, 80_MiB);
  EXPECT_EQ(pool.statistics().num_alloc_retries, 0u) << "collecting was enough";
}

TEST(torch_row, n069_npu_a_request_above_the_fraction_is_rejected_at_once) {
  npu pool{of_capacity<simulated_npu>(64_GiB), torch_npu_family::native::configured({.throw_on_oom = true})};
  ASSERT_TRUE(set_memory_fraction(pool, 0.01));
  pool.deallocate(pool.allocate(20_MiB));
  EXPECT_THROW((void)pool.allocate(1_GiB), out_of_memory);
  EXPECT_EQ(pool.statistics().num_oom_rejections, 1u);
  EXPECT_EQ(pool.statistics().num_alloc_retries, 0u) << "what is cached stays";
  EXPECT_EQ(pool.current_usage().cached, 22_MiB);
  EXPECT_NE(pool.try_allocate(1_MiB), nullptr);
  EXPECT_EQ(pool.statistics().num_oom_rejections, 1u);
}

TEST(torch_row, n122_below_the_threshold_a_miss_collects_nothing_and_ages_idle_blocks) {
  cuda pool{of_capacity(1_GiB), {.eviction = {.threshold = percent(90)}}};
  ASSERT_TRUE(set_memory_fraction(pool, 0.5));
  pool.deallocate(pool.allocate(40_MiB));
  const auto age = [&pool] {
    auto& manager = tessera::detail::core_access::manager(pool);
    std::uint64_t found = 0;
    manager.for_each_idle([&](const detail::block& b) {
      found = manager.age(b);
      return false;
    });
    return found;
  };
  const std::uint64_t before = age();
  ASSERT_NE(pool.try_allocate(80_MiB), nullptr);
  EXPECT_EQ(pool.statistics().num_device_free, 0u);
  EXPECT_EQ(age(), before + 1);
}

TEST(torch_row, n123_a_fraction_of_0_refuses_new_segments_and_lets_the_cache_serve) {
  cuda pool;
  void* const cached = pool.allocate(40_MiB);
  pool.deallocate(cached);
  ASSERT_TRUE(set_memory_fraction(pool, 0));
  EXPECT_EQ(pool.try_allocate(1), nullptr) << "small blocks have segments of their own";
  EXPECT_EQ(pool.current_usage().reserved, 0u) << "the miss had everything cached given back";
  ASSERT_TRUE(set_memory_fraction(pool, 1));
  void* const again = pool.allocate(40_MiB);
  pool.deallocate(again);
  ASSERT_TRUE(set_memory_fraction(pool, 0));
  EXPECT_EQ(pool.try_allocate(30_MiB), again);
  EXPECT_EQ(pool.try_allocate(1), nullptr);
}

}  // namespace
