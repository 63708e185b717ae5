// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>

#include <gtest/gtest.h>

#include <tessera/provider/simulated_device.hpp>

namespace {

using namespace tessera;
using options = simulated_device::options;

std::uintptr_t number(void* p) { return reinterpret_cast<std::uintptr_t>(p); }

TEST(simulated_device, gives_growing_addresses_never_twice) {
  simulated_device one, two{options{.device = 1}};
  void* a = one.acquire(1_MiB);
  void* b = one.acquire(3_MiB);
  EXPECT_EQ(number(b) - number(a), 2_MiB);
  EXPECT_TRUE(one.release(a, 1_MiB));
  EXPECT_EQ(number(one.acquire(1_MiB)) - number(b), 4_MiB);
  EXPECT_GT(number(two.acquire(512)), number(b) + (std::uintptr_t{1} << 50));
  simulated_device again;
  EXPECT_EQ(again.acquire(1_MiB), a);
}

TEST(simulated_device, refuses_beyond_its_capacity_and_what_is_not_a_segment) {
  simulated_device device{options{.capacity = 4_MiB, .granularity = 4096}};
  EXPECT_EQ(device.acquire(0), nullptr);
  EXPECT_EQ(device.acquire(100), nullptr);
  EXPECT_EQ(device.acquire(~std::size_t{0} / 4096 * 4096), nullptr);
  void* all = device.acquire(4_MiB);
  EXPECT_NE(all, nullptr);
  EXPECT_EQ(device.acquire(4096), nullptr);
  EXPECT_EQ(device.calls().refused, 4u);
  EXPECT_FALSE(device.release(all, 2_MiB));
  EXPECT_FALSE(device.release(&device, 4_MiB));
  EXPECT_EQ(device.used(), 4_MiB);
  EXPECT_TRUE(device.release(all, 4_MiB));
  EXPECT_FALSE(device.release(all, 4_MiB));
  EXPECT_EQ(device.used(), 0u);
  EXPECT_EQ(device.peak_used(), 4_MiB);
}

TEST(simulated_device, gives_huge_pages_while_its_budget_lasts) {
  simulated_device device{options{.huge_budget = 2_MiB}};
  void* p = device.acquire(2_MiB, page_kind::huge);
  ASSERT_NE(p, nullptr);
  EXPECT_EQ(device.acquire(512, page_kind::huge), nullptr);
  EXPECT_NE(device.acquire(512, page_kind::normal), nullptr);
  EXPECT_TRUE(device.release(p, 2_MiB));
  EXPECT_NE(device.acquire(2_MiB, page_kind::huge), nullptr);
}

TEST(simulated_device, fails_on_demand) {
  simulated_device device;
  device.fail_every(3);
  void* p = device.acquire(512);
  EXPECT_NE(p, nullptr);
  EXPECT_NE(device.acquire(512), nullptr);
  EXPECT_FALSE(device.release(p, 512));
  EXPECT_TRUE(device.release(p, 512));
  device.fail_every(0);
  device.fail_call(2);
  simulated_device::event e;
  EXPECT_TRUE(device.record(stream_id{}, e));
  EXPECT_FALSE(device.wait(e));
  EXPECT_TRUE(device.wait(e));
  EXPECT_EQ(device.calls().failed, 2u);
  EXPECT_EQ(device.calls().refused, 0u);
}

TEST(simulated_device, lets_streams_take_virtual_time) {
  simulated_device device{
      options{.cost = {.acquire = 100, .acquire_per_mib = 10, .record = 1, .query = 1, .wait = 1}}};
  (void)device.acquire(3_MiB);
  EXPECT_EQ(device.now_ns(), 130u);
  device.submit(stream_id{5}, 1000);
  device.submit(stream_id{5}, 1000);
  simulated_device::event busy, idle;
  ASSERT_TRUE(device.record(stream_id{5}, busy) && device.record(stream_id{6}, idle));
  EXPECT_FALSE(device.query(busy));
  EXPECT_TRUE(device.query(idle));
  device.hold_events(true);
  EXPECT_FALSE(device.query(idle));
  EXPECT_TRUE(device.wait(busy));
  EXPECT_EQ(device.now_ns(), 2131u);
  device.hold_events(false);
  EXPECT_TRUE(device.query(busy));
}

TEST(simulated_device, logs_the_latest_calls) {
  simulated_device device{options{.log_calls = 2}};
  void* p = device.acquire(512);
  device.release(p, 512);
  EXPECT_EQ(device.acquire(100), nullptr);
  ASSERT_EQ(device.log().size(), 2u);
  EXPECT_EQ(device.log()[0].what, simulated_device::call::release);
  EXPECT_TRUE(device.log()[0].worked);
  EXPECT_EQ(device.log()[0].address, number(p));
  EXPECT_EQ(device.log()[1].bytes, 100u);
  EXPECT_FALSE(device.log()[1].worked);
}

}  // namespace
