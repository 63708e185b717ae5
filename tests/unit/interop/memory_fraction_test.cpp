// SPDX-License-Identifier: Apache-2.0
// Every kind of allocator obeys a memory fraction, and the fraction can be removed.
#include <cstddef>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/concurrent/locked.hpp>
#include <tessera/concurrent/per_device.hpp>
#include <tessera/concurrent/per_stream.hpp>
#include <tessera/interop/memory_fraction.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/recipe/torch_npu.hpp>
#include <tessera/tessera.hpp>

namespace {

using namespace tessera;

simulated_device device_of(std::size_t capacity, unsigned number = 0) {
  return simulated_device{simulated_device::options{.capacity = capacity, .device = number}};
}

template <typename Allocator>
void keeps_to_its_share(Allocator& pool) {
  EXPECT_EQ(memory_fraction(pool), 1.0);
  ASSERT_TRUE(set_memory_fraction(pool, 0.25));
  EXPECT_EQ(memory_fraction(pool), 0.25);
  EXPECT_EQ(pool.current_usage().limit, 100_MiB);
  void* const most = pool.try_allocate(80_MiB);
  EXPECT_NE(most, nullptr);
  EXPECT_EQ(pool.try_allocate(40_MiB, stream_id{1}), nullptr);
  EXPECT_FALSE(set_memory_fraction(pool, 1.5));
  EXPECT_EQ(pool.current_usage().limit, 100_MiB);
  ASSERT_TRUE(set_memory_fraction(pool, 0));
  EXPECT_EQ(pool.try_allocate(2_MiB, stream_id{1}), nullptr);
  EXPECT_EQ(pool.current_usage().reserved, 80_MiB) << "live blocks stay";
  ASSERT_TRUE(set_memory_fraction(pool, 1));
  void* const more = pool.try_allocate(200_MiB, stream_id{1});
  EXPECT_NE(more, nullptr);
  pool.deallocate(most);
  pool.deallocate(more);
}

template <typename Recipe>
void every_allocator_keeps_to_its_share() {
  caching_allocator<Recipe, simulated_device> plain{device_of(400_MiB)};
  keeps_to_its_share(plain);
  locked<caching_allocator<Recipe, simulated_device>> with_a_mutex{device_of(400_MiB)};
  keeps_to_its_share(with_a_mutex);
  per_stream<caching_allocator<Recipe, simulated_device>> with_lanes{device_of(400_MiB)};
  keeps_to_its_share(with_lanes);
}

TEST(memory_fraction_threads, holds_for_every_kind_of_allocator_and_of_growth) {
  every_allocator_keeps_to_its_share<pytorch_family::native>();
  every_allocator_keeps_to_its_share<pytorch_family::expandable>();
  every_allocator_keeps_to_its_share<stitched>();
  every_allocator_keeps_to_its_share<passthrough>();
}

template <typename Allocator>
void sets_it_for_each_device() {
  std::vector<simulated_device> devices;
  devices.push_back(device_of(400_MiB));
  devices.push_back(device_of(1_GiB, 1));
  Allocator all{std::move(devices)};
  ASSERT_TRUE(set_memory_fraction(all, 0.25));
  EXPECT_EQ(all.front(0).current_usage().limit, 100_MiB);
  EXPECT_EQ(all.front(1).current_usage().limit, 256_MiB);
  EXPECT_FALSE(set_memory_fraction(all, -1));
  ASSERT_TRUE(set_memory_fraction(all.front(1), 0.5));
  EXPECT_EQ(memory_fraction(all.front(0)), 0.25);
  EXPECT_EQ(all.front(1).current_usage().limit, 512_MiB);
  EXPECT_EQ(all.try_allocate(120_MiB, 0), nullptr);
  void* const p = all.try_allocate(300_MiB, 1);
  EXPECT_NE(p, nullptr);
  all.deallocate(p);
}
TEST(memory_fraction_threads, is_of_each_device) {
  sets_it_for_each_device<per_device<locked<caching_allocator<pytorch_family::native, simulated_device>>>>();
  sets_it_for_each_device<
      per_device<per_stream<caching_allocator<pytorch_family::native, simulated_device>>>>();
}

TEST(memory_fraction, leaves_a_limit_in_bytes_alone) {
  caching_allocator<pytorch_family::native, simulated_device> pool{device_of(1_GiB),
                                                                   {.growth = {.limit = 100_MiB}}};
  ASSERT_TRUE(set_memory_fraction(pool, 0.5));
  EXPECT_EQ(pool.current_usage().limit, 100_MiB);
  ASSERT_TRUE(set_memory_fraction(pool, 0.05));
  EXPECT_LT(pool.current_usage().limit, 52_MiB);
  ASSERT_TRUE(set_memory_fraction(pool, 1));
  EXPECT_EQ(pool.current_usage().limit, 100_MiB);
}

TEST(memory_fraction, of_1_is_a_limit_that_refuses_before_the_device_is_asked) {
  caching_allocator<pytorch_family::native, simulated_device> pool{device_of(100_MiB)};
  EXPECT_FALSE(pool.current_usage().has_limit);
  EXPECT_EQ(pool.try_allocate(120_MiB), nullptr);
  EXPECT_EQ(pool.provider().calls().refused, 2u);
  ASSERT_TRUE(set_memory_fraction(pool, 1));
  EXPECT_TRUE(pool.current_usage().has_limit);
  EXPECT_EQ(pool.current_usage().limit, 100_MiB);
  EXPECT_EQ(pool.try_allocate(120_MiB), nullptr);
  EXPECT_EQ(pool.provider().calls().refused, 2u);
}

/// The segments that are released if 60 of 100 MiB are idle, the threshold is half, and 20 MiB are requested.
template <typename Recipe>
std::size_t collected(double share) {
  policies<Recipe> chosen{};
  chosen.eviction.threshold = percent(50);
  caching_allocator<Recipe, simulated_device> pool{device_of(100_MiB), chosen};
  if (share >= 0) {
    EXPECT_TRUE(set_memory_fraction(pool, share));
  }
  pool.deallocate(pool.allocate(60_MiB - 512));
  EXPECT_NE(pool.try_allocate(20_MiB - 512, stream_id{1}), nullptr);
  return pool.statistics().num_device_free;
}
TEST(memory_fraction, garbage_is_collected_only_once_it_was_set) {
  EXPECT_EQ(collected<pytorch_family::native>(-1), 0u);
  EXPECT_EQ(collected<pytorch_family::native>(1), 1u);
  EXPECT_EQ(collected<pytorch_family::native>(0.9), 1u);
  EXPECT_EQ(collected<torch_npu_family::native>(-1), 0u);
  EXPECT_EQ(collected<torch_npu_family::native>(1), 1u);
}

TEST(memory_fraction, idle_segments_age_from_when_it_was_set) {
  caching_allocator<pytorch_family::native, simulated_device> pool{device_of(200_MiB),
                                                                   {.eviction = {.threshold = percent(30)}}};
  pool.deallocate(pool.allocate(30_MiB));
  for (int i = 0; i < 20; ++i) pool.deallocate(pool.allocate(2_MiB, stream_id{3}));
  pool.deallocate(pool.allocate(40_MiB, stream_id{1}));
  ASSERT_TRUE(set_memory_fraction(pool, 1));
  EXPECT_NE(pool.try_allocate(50_MiB, stream_id{2}), nullptr);
  EXPECT_EQ(pool.statistics().num_device_free, 3u)
      << "all are as old, although some have been idle for longer";
}

TEST(memory_fraction, begins_with_the_policies) {
  policies<pytorch_family::native> chosen{};
  EXPECT_FALSE(set_memory_fraction(chosen, 1.25));
  ASSERT_TRUE(set_memory_fraction(chosen, 0.25));
  caching_allocator<pytorch_family::native, simulated_device> pool{device_of(400_MiB), chosen};
  EXPECT_EQ(pool.current_usage().limit, 100_MiB);
  EXPECT_EQ(memory_fraction(pool), 0.25);
}

TEST(memory_fraction, just_below_1_is_still_a_limit) {
  caching_allocator<pytorch_family::native, simulated_device> pool{device_of(64_GiB)};
  ASSERT_TRUE(set_memory_fraction(pool, 0.99999999999));
  EXPECT_LT(pool.current_usage().limit, 64_GiB);
  EXPECT_GT(pool.current_usage().limit, 64_GiB - 100);
}

}  // namespace
