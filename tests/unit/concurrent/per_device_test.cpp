// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/concurrent/locked.hpp>
#include <tessera/concurrent/per_device.hpp>
#include <tessera/concurrent/per_stream.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

#include "devices.hpp"

namespace {

using namespace tessera;
using adaptor_tests::gated_device;
using adaptor_tests::gated_ref;

std::vector<simulated_device> devices(unsigned count) {
  std::vector<simulated_device> made;
  for (unsigned i = 0; i < count; ++i)
    made.emplace_back(simulated_device::options{.capacity = 1_GiB, .device = i});
  return made;
}

template <typename Recipe>
void finds_the_device_of_a_block() {
  per_device<locked<caching_allocator<Recipe, simulated_device>>> all{devices(3)};
  ASSERT_EQ(all.devices(), 3u);
  void* const p = all.allocate(1_MiB, 0);
  void* const q = all.allocate(30_MiB, 2, stream_id{4});
  EXPECT_EQ(all.device_of(p), 0u);
  EXPECT_EQ(all.device_of(static_cast<char*>(q) + 29_MiB), 2u);
  EXPECT_EQ(all.device_of(&all), all.devices());
  EXPECT_EQ(all.front(1).current_usage().allocated, 0u);
  EXPECT_EQ(all.front(2).current_usage().allocated, 30_MiB);
  EXPECT_TRUE(all.record_stream(q, stream_id{5}));
  EXPECT_FALSE(all.try_record_stream(&all, stream_id{5}));
  all.deallocate(q, 30_MiB);
  all.deallocate(p);
  all.deallocate(nullptr);
  EXPECT_FALSE(all.try_deallocate(p));
  EXPECT_FALSE(all.try_deallocate(&all));
  EXPECT_EQ(all.try_allocate(2_GiB, 1), nullptr);
  all.trim();
  EXPECT_EQ(all.device_of(q), all.devices());
  EXPECT_STREQ(all.audit(), nullptr);
}
TEST(per_device_threads, finds_the_device_of_a_block) {
  finds_the_device_of_a_block<pytorch<>>();
  finds_the_device_of_a_block<pytorch_family::expandable>();
}

TEST(per_device_threads, knows_whole_ranges) {
  per_device<locked<caching_allocator<pytorch_family::expandable, simulated_device>>> all{devices(2)};
  void* const p = all.allocate(20_MiB, 1);
  char* const behind = static_cast<char*>(p) + 20_MiB;
  EXPECT_EQ(all.device_of(behind - 1), 1u);
  EXPECT_EQ(all.device_of(behind), 1u) << "reserved, not mapped";
  void* const q = all.allocate(40_MiB, 1);
  ASSERT_EQ(q, behind);
  EXPECT_EQ(all.device_of(behind + 40_MiB - 1), 1u);
  all.deallocate(p);
  all.trim();
  EXPECT_EQ(all.device_of(p), 1u) << "still reserved";
  EXPECT_EQ(all.device_of(behind), 1u);
  EXPECT_FALSE(all.try_deallocate(p));
  all.deallocate(q);
  EXPECT_EQ(all.allocate(60_MiB, 1), p);
}

using per_device_threads_death = testing::Test;
TEST(per_device_threads_death, names_a_device_that_is_not_there) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  per_device<locked<caching_allocator<pytorch<>, simulated_device>>> all{devices(2)};
  EXPECT_DEATH((void)all.allocate(1, 2), "per_device: there is no device of this number");
  EXPECT_DEATH((void)all.front(2), "per_device: there is no device of this number");
  EXPECT_DEATH(all.deallocate(&all), "deallocate: not the address of a live block");
}

template <typename Allocator>
void pass_blocks_around() {
  gated_device first, second(2_GiB);
  second.with([](auto& d) { d = simulated_device{simulated_device::options{.device = 1}}; });
  {
    Allocator all{{gated_ref(first), gated_ref(second)}};
    std::vector<std::vector<void*>> blocks(4);
    const auto in_threads = [](auto f) {
      std::vector<std::thread> running;
      for (std::size_t t = 0; t < 4; ++t) running.emplace_back(f, t);
      for (auto& r : running) r.join();
    };
    for (int round = 0; round < 5; ++round) {
      in_threads([&](std::size_t t) {
        for (std::size_t i = 0; i < 200; ++i) {
          void* const p = all.allocate(1 + i * 1_KiB, i % 2, stream_id{t});
          EXPECT_EQ(all.device_of(p), i % 2);
          blocks[t].push_back(p);
        }
      });
      in_threads([&](std::size_t t) {
        for (void* p : std::exchange(blocks[(t + 1) % 4], {})) all.deallocate(p);
        all.trim();
      });
    }
    EXPECT_STREQ(all.audit(), nullptr);
    EXPECT_EQ(all.front(0).current_usage().allocated + all.front(1).current_usage().allocated, 0u);
  }
  EXPECT_EQ(adaptor_tests::outstanding(first) + adaptor_tests::outstanding(second), 0u);
}
TEST(per_device_threads, pass_blocks_around_on_any_front) {
  pass_blocks_around<per_device<locked<caching_allocator<pytorch<>, gated_ref>>>>();
  pass_blocks_around<per_device<per_stream<caching_allocator<pytorch<>, gated_ref>>>>();
  pass_blocks_around<per_device<locked<caching_allocator<pytorch_family::expandable, gated_ref>>>>();
  pass_blocks_around<per_device<per_stream<caching_allocator<pytorch_family::expandable, gated_ref>>>>();
}

TEST(per_device_threads, serves_one_thread_with_plain_allocators) {
  per_device<caching_allocator<pytorch<>, simulated_device>> all{devices(2)};
  per_device<caching_allocator<pytorch_family::expandable, simulated_device>> ranges{devices(2)};
  const auto serves = [](auto& pool) {
    void* const p = pool.allocate(1_KiB, 1);
    EXPECT_EQ(pool.device_of(p), 1u);
    pool.deallocate(p);
    EXPECT_EQ(pool.front(1).current_usage().cached, 2_MiB);
  };
  serves(all);
  serves(ranges);
}

}  // namespace
