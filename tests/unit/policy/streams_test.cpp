// SPDX-License-Identifier: Apache-2.0
#include <type_traits>

#include <gtest/gtest.h>

#include <tessera/tessera.hpp>

namespace {

using namespace tessera;

template <typename Streams>
using pool_with = caching_allocator<with<pytorch<>, Streams>, simulated_device>;
constexpr stream_id own{1}, other{2};

TEST(reuse_on_same_stream_after_recorded, holds_a_block_back_for_its_own_stream_once_that_is_recorded) {
  pool_with<reuse_on_same_stream_after_recorded> pool;
  pool.device().hold_events(true);
  void* const p = pool.allocate(10_MiB, own);
  pool.deallocate(p);
  EXPECT_EQ(pool.allocate(10_MiB, own), p);
  ASSERT_TRUE(pool.record_stream(p, own));
  pool.deallocate(p);
  EXPECT_EQ(pool.now().pending, 10_MiB);
  EXPECT_NE(pool.allocate(10_MiB, own), p);
  pool.device().hold_events(false);
  EXPECT_NE(pool.allocate(10_MiB, other), p);
  EXPECT_EQ(pool.allocate(10_MiB, own), p);
}

TEST(reuse_after_recorded_streams, shares_blocks_among_streams_and_waits_for_all_that_were_recorded) {
  pool_with<reuse_after_recorded_streams> pool;
  void* const p = pool.allocate(10_MiB, own);
  pool.deallocate(p);
  EXPECT_EQ(pool.allocate(10_MiB, other), p);
  ASSERT_TRUE(pool.record_stream(p, own) && pool.record_stream(p, stream_id{}));
  pool.device().submit(own, 1'000'000'000);
  pool.device().submit(stream_id{}, 2'000'000'000);
  pool.deallocate(p);
  pool.device().advance(1'500'000'000);
  void* const second = pool.allocate(10_MiB, own);
  EXPECT_NE(second, p);
  pool.device().advance(1'000'000'000);
  EXPECT_EQ(pool.allocate(10_MiB, own), p);
}

static_assert(std::is_empty_v<reuse_after_recorded_streams> &&
              std::is_empty_v<reuse_on_same_stream_after_recorded>);

}  // namespace
