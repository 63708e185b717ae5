// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <type_traits>

#include <gtest/gtest.h>

#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

namespace {

using namespace tessera;

template <typename Eviction>
using pool_with = caching_allocator<with<power_of_two, Eviction>, simulated_device>;

TEST(evict_at_free_above, gives_larger_segments_back_at_once_and_keeps_the_others) {
  pool_with<evict_at_free_above<>> pool(simulated_device{}, {.eviction = {.kept = 1_MiB}});
  void* const kept = pool.allocate(1_MiB);
  void* const first = pool.allocate(1_MiB + 1);
  void* const second = pool.allocate(4_MiB);
  pool.deallocate(first);
  EXPECT_EQ(pool.now().reserved, 5_MiB);
  pool.deallocate(kept);
  EXPECT_EQ(pool.now().reserved, 5_MiB);
  pool.deallocate(second);
  EXPECT_EQ(pool.now().reserved, 1_MiB);
  EXPECT_EQ(pool.now().cached, 1_MiB);
}

TEST(evict_at_free_above, keeps_everything_where_no_size_is_given) {
  pool_with<evict_at_free_above<>> pool;
  pool.deallocate(pool.allocate(1_GiB));
  EXPECT_EQ(pool.now().cached, 1_GiB);
}

TEST(evict_at_free_above, gives_a_segment_back_once_the_last_stream_is_done_with_it) {
  pool_with<evict_at_free_above<1_MiB>> pool;
  void* const used = pool.allocate(4_MiB);
  ASSERT_TRUE(pool.record_stream(used, stream_id{7}));
  pool.device().submit(stream_id{7}, 1'000'000'000);
  pool.deallocate(used);
  EXPECT_EQ(pool.now().pending, 4_MiB);
  pool.device().advance(1'000'000'000);
  pool.deallocate(pool.allocate(512));
  EXPECT_EQ(pool.now().reserved, 512u);
}

static_assert(std::is_empty_v<evict_at_free_above<1_MiB>>);

}  // namespace
