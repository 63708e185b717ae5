// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

#include <tessera/provider/adaptor.hpp>
#include <tessera/provider/host_pinned.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/provider/stream_order.hpp>

namespace {

using namespace tessera;
constexpr stream_id a{1}, b{2}, c{3};

TEST(stream_order, records_waits_and_the_waits_before_them) {
  stream_order order;
  EXPECT_FALSE(order.is_ordered_after(b, a, 1));
  EXPECT_TRUE(order.is_ordered_after(b, a, 0));
  EXPECT_TRUE(order.is_ordered_after(b, b, 7));
  order.add(b, 5, a, 3);
  EXPECT_TRUE(order.is_ordered_after(b, a, 3));
  EXPECT_FALSE(order.is_ordered_after(b, a, 4));
  EXPECT_FALSE(order.is_ordered_after(a, b, 1));
  order.add(c, 1, b, 5);
  EXPECT_TRUE(order.is_ordered_after(c, a, 3));
  EXPECT_FALSE(order.is_ordered_after(c, a, 4));
}

TEST(stream_order, passes_on_only_work_before_the_event) {
  stream_order order;
  order.add(b, 5, a, 3);
  order.add(b, 9, a, 8);
  order.add(c, 1, b, 8);  // after the first wait of b, before the second one
  EXPECT_TRUE(order.is_ordered_after(c, a, 3));
  EXPECT_FALSE(order.is_ordered_after(c, a, 4));
  order.add(c, 2, b, 4);  // changes nothing
  EXPECT_TRUE(order.is_ordered_after(c, b, 8));
  order.add(c, 3, b, 9);
  EXPECT_TRUE(order.is_ordered_after(c, a, 8));
}

TEST(stream_order, forgets_old_waits_to_the_safe_side) {
  stream_order order;
  for (std::uint64_t i = 1; i <= 1000; ++i) order.add(b, i, a, i);
  EXPECT_TRUE(order.is_ordered_after(b, a, 1000));
  order.add(c, 1, b, 10);
  EXPECT_FALSE(order.is_ordered_after(c, a, 11));
  order.add(c, 2, b, 1000);
  EXPECT_TRUE(order.is_ordered_after(c, a, 1000));
}

TEST(simulated_device, puts_streams_in_order) {
  simulated_device device;
  EXPECT_EQ(device.position(a), 0u);
  EXPECT_TRUE(device.is_done(a, 0));
  device.submit(a, 100'000);
  device.submit(a, 100'000);
  EXPECT_EQ(device.position(a), 2u);
  EXPECT_FALSE(device.is_done(a, 1));
  device.advance(100'000);
  EXPECT_TRUE(device.is_done(a, 1));
  EXPECT_FALSE(device.is_done(a, 2));
  device.hold_events(true);
  EXPECT_FALSE(device.is_done(a, 1));
  EXPECT_TRUE(device.is_done(a, 0) && device.is_done(b, 0));
  device.hold_events(false);

  EXPECT_FALSE(device.is_ordered_after(b, a, 2));
  ASSERT_TRUE(device.make_wait(b, a, 2));
  EXPECT_TRUE(device.is_ordered_after(b, a, 2));
  EXPECT_EQ(device.position(b), 1u);
  EXPECT_FALSE(device.is_done(b, 1));
  EXPECT_TRUE(device.synchronize(b));
  EXPECT_TRUE(device.is_done(a, 2) && device.is_done(b, 1));
  EXPECT_EQ(device.calls().make_wait, 1u);
}

TEST(simulated_device, lets_a_stream_wait_as_long_as_the_other_one_works) {
  simulated_device device;
  device.submit(a, 1'000'000);
  simulated_device::event early, late;
  ASSERT_TRUE(device.record(a, early));
  device.submit(a, 1'000'000'000);
  ASSERT_TRUE(device.make_wait(b, early));
  device.submit(b, 1'000'000);
  ASSERT_TRUE(device.record(b, late));
  const std::uint64_t before = device.now_ns();
  EXPECT_TRUE(device.wait(late));
  EXPECT_GE(device.now_ns(), before + 1'900'000);
  EXPECT_LT(device.now_ns(), before + 1'000'000'000);
  EXPECT_TRUE(device.is_ordered_after(b, a, 1));
  EXPECT_FALSE(device.is_ordered_after(b, a, 2));
}

TEST(simulated_device, keeps_the_order_if_a_wait_fails) {
  simulated_device device;
  device.submit(a, 1000);
  device.fail_call(1);
  EXPECT_FALSE(device.make_wait(b, a, 1));
  EXPECT_STREQ(device.last_error(), "make_wait: the call is made to fail");
  EXPECT_FALSE(device.is_ordered_after(b, a, 1));
  EXPECT_EQ(device.position(b), 0u);
  EXPECT_TRUE(device.make_wait(a, a, 1));
  EXPECT_EQ(device.position(a), 1u);
}

host_pinned small_host() {
  return host_pinned{host_pinned::options{.capacity = 1_MiB, .pin = host_pinned::pinning::never}};
}

TEST(host_pinned, puts_streams_in_order) {
  host_pinned device = small_host();
  const stream_id first = device.create_stream(), second = device.create_stream();
  std::atomic<bool> may_end = false, ended = false, seen = false;
  device.submit(first, [&] {
    while (!may_end) std::this_thread::yield();
    ended = true;
  });
  EXPECT_EQ(device.position(first), 1u);
  EXPECT_FALSE(device.is_done(first, 1));
  host_pinned::event mark;
  ASSERT_TRUE(device.record(first, mark));
  ASSERT_TRUE(device.make_wait(second, mark));
  EXPECT_TRUE(device.is_ordered_after(second, first, 1));
  device.submit(second, [&] { seen = ended.load(); });
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_FALSE(device.is_done(second, 1));
  may_end = true;
  EXPECT_TRUE(device.synchronize(second));
  EXPECT_TRUE(seen);
  EXPECT_TRUE(device.is_done(first, 1) && device.is_done(second, 2));
}

TEST(host_pinned, waits_for_no_more_than_was_submitted) {
  host_pinned device = small_host();
  const stream_id first = device.create_stream(), second = device.create_stream();
  device.submit(first, [] {});
  EXPECT_TRUE(device.make_wait(second, first, 1000));
  EXPECT_TRUE(device.make_wait(first, second, 1000));
  EXPECT_TRUE(device.synchronize(first) && device.synchronize(second));
}

// Streams that wait for each other's earlier work end in any order. No stream is ended by the thread of
// another.
TEST(host_pinned, ends_streams_that_wait_for_each_other) {
  for (const bool first_one : {true, false}) {
    host_pinned device = small_host();
    const stream_id first = device.create_stream(), second = device.create_stream();
    std::atomic<bool> may_end = false;
    device.submit(first, [&] {
      while (!may_end) std::this_thread::yield();
    });
    ASSERT_TRUE(device.make_wait(second, first, device.position(first)));
    ASSERT_TRUE(device.make_wait(first, second, device.position(second)));
    std::thread later([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      may_end = true;
    });
    EXPECT_TRUE(device.destroy_stream(first_one ? first : second));
    later.join();
    const stream_id gone = first_one ? first : second;
    EXPECT_TRUE(device.is_done(gone, 1000));
    EXPECT_EQ(device.position(gone), 0u);
    EXPECT_FALSE(device.make_wait(gone, {}, 1));
    EXPECT_TRUE(device.make_wait({}, gone, 1));
  }
}

}  // namespace
