// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <cstdint>
#include <thread>

#include <gtest/gtest.h>

#include <tessera/provider/host_pinned.hpp>
#include <tessera/provider/host_stream.hpp>

namespace {

using namespace tessera;

host_pinned unlocked() { return host_pinned({.pin = host_pinned::pinning::never}); }

void await(const std::atomic<bool>& flag) {
  while (!flag) std::this_thread::yield();
}

TEST(host_stream_threads, work_that_would_wait_for_itself_gets_an_error) {
  host_pinned device = unlocked();
  const stream_id own = device.create_stream(), other = device.create_stream();
  bool waited = true, synchronized = true, reached = false, waited_for_other = false;
  device.submit(own, [&] {
    host_pinned::event behind{};
    EXPECT_TRUE(device.record(own, behind));
    waited = device.wait(behind);
    synchronized = device.synchronize(own);
    host_pinned::event nothing{other, 0};
    reached = device.wait(nothing);
    device.submit(other, [] {});
    waited_for_other = device.synchronize(other);
  });
  EXPECT_TRUE(device.synchronize(own));
  EXPECT_FALSE(waited);
  EXPECT_FALSE(synchronized);
  EXPECT_TRUE(reached);
  EXPECT_TRUE(waited_for_other);
}

TEST(host_stream_threads, a_destroyed_stream_completes_its_work) {
  host_pinned device = unlocked();
  const stream_id ending = device.create_stream();
  std::atomic<bool> begun = false, go_on = false;
  device.submit(ending, [&] {
    begun = true;
    await(go_on);
  });
  host_pinned::event behind{};
  ASSERT_TRUE(device.record(ending, behind));
  await(begun);
  std::thread destroying([&] { EXPECT_TRUE(device.destroy_stream(ending)); });
  while (device.submit(ending, [] {})) std::this_thread::yield();  // until it accepts no more
  EXPECT_FALSE(device.query(behind));
  EXPECT_FALSE(device.is_done(ending, behind.mark));
  EXPECT_FALSE(device.destroy_stream(ending)) << "another call does that";
  EXPECT_FALSE(device.make_wait(ending, stream_id{}, 0)) << "nothing comes behind its work";
  go_on = true;
  EXPECT_TRUE(device.wait(behind));
  destroying.join();
  EXPECT_TRUE(device.query(behind));
  EXPECT_TRUE(device.synchronize(ending));
  EXPECT_FALSE(device.destroy_stream(ending));
}

// The thread of a stream must not destroy it, because it would wait for itself.
TEST(host_stream_threads, a_stream_ends_while_its_work_uses_it) {
  host_pinned device = unlocked();
  for (int round = 0; round < 100; ++round) {
    const stream_id asked = device.create_stream();
    device.submit(asked, [&device, asked] {
      for (int i = 0; i < 100; ++i) (void)device.position(asked);
    });
    EXPECT_TRUE(device.destroy_stream(asked));
  }
}

TEST(host_stream_threads, a_provider_is_destroyed_while_work_uses_streams) {
  std::atomic<bool> asked = false;
  {
    detail::host_streams streams;
    const stream_id busy = streams.create();
    const auto on = streams.find(busy);
    on->submit([&] {
      for (int i = 0; i < 10'000; ++i) (void)streams.find(stream_id{});
      asked = true;
    });
  }
  EXPECT_TRUE(asked);
}

using host_stream_threads_death = testing::Test;
TEST(host_stream_threads_death, work_must_not_end_its_stream) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(
      {
        host_pinned device = unlocked();
        const stream_id own = device.create_stream();
        device.submit(own, [&] { device.destroy_stream(own); });
        device.synchronize(own);
      },
      "destroy_stream: work must not end the stream that it is on");
}

}  // namespace
