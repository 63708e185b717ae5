// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>

#include <gtest/gtest.h>

#include <tessera/concurrent/locked.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/provider/stream_registry.hpp>
#include <tessera/tessera.hpp>

namespace {

using namespace tessera;
using registry = stream_registry<simulated_device>;
static_assert(detail::stream_listing_provider<registry> && ordering_provider<registry> &&
              !detail::stream_listing_provider<simulated_device>);

constexpr stream_id one{1}, two{2};
constexpr std::uint64_t long_ns = 1'000'000'000;

TEST(stream_registry, completes_blocks_that_wait_only_for_ended_streams) {
  simulated_device device;
  registry::ended_streams ended;
  caching_allocator<pytorch<>, registry> pool{registry(device, ended)};
  void* const p = pool.allocate(5_MiB);
  EXPECT_TRUE(pool.record_stream(p, one));
  ended.end(one);
  const std::uint64_t records = device.calls().record;
  pool.deallocate(p);
  EXPECT_EQ(pool.current_usage().pending(), 0u);
  EXPECT_EQ(device.calls().record, records);  // the device is not asked about what is not there
  void* const q = pool.allocate(5_MiB);
  EXPECT_EQ(q, p);
  EXPECT_FALSE(pool.record_stream(q, one));
  EXPECT_TRUE(pool.record_stream(q, two));
  device.submit(two, long_ns);
  pool.deallocate(q);
  EXPECT_EQ(pool.current_usage().pending(), 5_MiB);
  EXPECT_STREQ(pool.audit(), nullptr);
}

TEST(stream_registry, exist_again_once_they_begin) {
  simulated_device device;
  registry::ended_streams ended;
  locked<caching_allocator<pytorch<>, registry>> pool{registry(device, ended)};
  ended.end(one);
  void* const p = pool.allocate(5_MiB);
  EXPECT_FALSE(pool.record_stream(p, one));
  ended.begin(one);
  EXPECT_TRUE(pool.record_stream(p, one));
  device.submit(one, long_ns);
  pool.deallocate(p);
  EXPECT_EQ(pool.current_usage().pending(), 5_MiB);
}

TEST(stream_registry, have_done_all_their_work) {
  simulated_device device;
  registry::ended_streams ended;
  registry seen(device, ended);
  device.submit(one, long_ns);
  EXPECT_EQ(seen.position(one), 1u);
  EXPECT_FALSE(seen.is_done(one, 1));
  EXPECT_FALSE(seen.is_ordered_after(two, one, 1));
  ended.end(one);
  EXPECT_FALSE(seen.has_stream(one));
  EXPECT_TRUE(seen.has_stream(two));
  EXPECT_EQ(seen.position(one), 0u);
  EXPECT_TRUE(seen.is_done(one, 1));
  EXPECT_TRUE(seen.is_ordered_after(two, one, 1));
  const std::uint64_t waits = device.calls().make_wait;
  EXPECT_TRUE(seen.make_wait(two, one, 1));
  EXPECT_FALSE(seen.make_wait(one, two, 0));
  EXPECT_EQ(device.calls().make_wait, waits);
  EXPECT_TRUE(seen.make_wait(two, stream_id{3}, 0));
  EXPECT_EQ(device.calls().make_wait, waits + 1);
  registry::event mark;
  EXPECT_FALSE(seen.record(one, mark));
  EXPECT_TRUE(seen.record(two, mark));
  EXPECT_TRUE(seen.synchronize(one));
  EXPECT_EQ(device.calls().synchronize, 0u);
  EXPECT_TRUE(seen.synchronize(two));
  EXPECT_EQ(device.calls().synchronize, 1u);
}

TEST(stream_registry, leave_their_blocks_to_others_that_may_cross) {
  simulated_device device;
  registry::ended_streams ended;
  caching_allocator<cuda_async, registry> pool{registry(device, ended)};
  device.submit(one, long_ns);
  void* const p = pool.allocate(5_MiB, one);
  pool.deallocate(p);
  ended.end(one);
  EXPECT_EQ(pool.allocate(5_MiB, two), p);
  EXPECT_EQ(device.calls().make_wait, 0u);
}

}  // namespace
