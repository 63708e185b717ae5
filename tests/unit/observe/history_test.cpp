// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/concurrent/locked.hpp>
#include <tessera/concurrent/per_device.hpp>
#include <tessera/concurrent/per_stream.hpp>
#include <tessera/facade.hpp>
#include <tessera/observe/history.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

namespace {

using namespace tessera;
using action = allocator_event::action;

/// Counts the calls.
struct ticks {
  std::uint64_t operator()() noexcept { return ++asked; }
  std::uint64_t asked = 0;
};
using ticking = history<ticks>;

template <typename History>
std::vector<std::size_t> bytes_of(const History& seen) {
  std::vector<std::size_t> all;
  seen.for_each([&](const auto& e) { all.push_back(e.event.bytes); });
  return all;
}
allocator_event of(std::size_t bytes) { return {.what = action::alloc, .bytes = bytes}; }

TEST(history, keeps_the_latest_oldest_first) {
  ticking seen(3);
  EXPECT_EQ(seen.size(), 0u);
  for (std::size_t i = 1; i <= 3; ++i) seen.on(of(i));
  EXPECT_EQ(bytes_of(seen), (std::vector<std::size_t>{1, 2, 3}));
  EXPECT_EQ(seen.dropped(), 0u);
  for (std::size_t i = 4; i <= 8; ++i) seen.on(of(i));
  EXPECT_EQ(bytes_of(seen), (std::vector<std::size_t>{6, 7, 8}));
  EXPECT_EQ(seen.dropped(), 5u);
  std::vector<std::uint64_t> times;
  seen.for_each([&](const auto& e) { times.push_back(e.time_us); });
  EXPECT_EQ(times, (std::vector<std::uint64_t>{6, 7, 8}));
  seen.clear();
  EXPECT_EQ(seen.size(), 0u);
  seen.on(of(9));
  EXPECT_EQ(bytes_of(seen), (std::vector<std::size_t>{9}));
}

TEST(history, has_a_capacity_of_at_least_one) {
  ticking seen(0);
  seen.on(of(1));
  seen.on(of(2));
  EXPECT_EQ(bytes_of(seen), (std::vector<std::size_t>{2}));
}

TEST(history, copies_are_independent) {
  ticking seen(2);
  for (std::size_t i = 1; i <= 3; ++i) seen.on(of(i));
  ticking copy = seen;
  copy.on(of(4));
  EXPECT_EQ(bytes_of(copy), (std::vector<std::size_t>{3, 4}));
  EXPECT_EQ(bytes_of(seen), (std::vector<std::size_t>{2, 3}));
  seen = copy;
  EXPECT_EQ(bytes_of(seen), (std::vector<std::size_t>{3, 4}));
}

TEST(history, labels_events) {
  ticking seen(10);
  seen.on(of(1));
  seen.label("forward");
  seen.on(of(2));
  seen.label("backward");
  seen.on(of(3));
  seen.label("forward");
  seen.on(of(4));
  seen.label("");
  seen.on(of(5));
  std::vector<std::string> labels;
  seen.for_each([&](const auto& e) { labels.emplace_back(seen.label_of(e)); });
  EXPECT_EQ(labels, (std::vector<std::string>{"", "forward", "backward", "forward", ""}));
}

TEST(history, too_many_labels_become_one) {
  ticking seen(4);
  for (std::size_t i = 0; i < 2 * ticking::max_labels; ++i) seen.label("step " + std::to_string(i));
  seen.on(of(1));
  seen.label("step 0");
  seen.on(of(2));
  std::vector<std::string> labels;
  seen.for_each([&](const auto& e) { labels.emplace_back(seen.label_of(e)); });
  EXPECT_EQ(labels, (std::vector<std::string>{"(more labels)", "step 0"}));
}

TEST(history, observes_all_events_of_an_allocator) {
  caching_allocator<pytorch_family::native, simulated_device, ticking> pool{
      simulated_device{simulated_device::options{.capacity = 30_MiB}}, {}, ticking(100)};
  void* const p = pool.allocate(1_MiB + 1);
  EXPECT_EQ(pool.try_allocate(25_MiB), nullptr);
  (void)pool.record_stream(p, stream_id{7});
  pool.provider().hold_events(true);
  pool.deallocate(p);
  pool.trim();
  std::vector<action> all;
  allocator_event oom{};
  pool.observer().for_each([&](const auto& e) {
    all.push_back(e.event.what);
    if (e.event.what == action::oom) oom = e.event;
  });
  EXPECT_EQ(all, (std::vector<action>{action::segment_alloc, action::alloc, action::refused, action::refused,
                                      action::oom, action::free_requested, action::free_completed,
                                      action::segment_free}));
  EXPECT_EQ(oom.bytes, 25_MiB);
  EXPECT_EQ(oom.address, 10_MiB) << "what the device has left";
}

TEST(history, is_reached_through_adaptors) {
  locked<pytorch_family::native, simulated_device, ticking> one;
  per_stream<pytorch_family::native, simulated_device, ticking> arenas;
  per_device<pytorch_family::native, simulated_device, locked, ticking> two(std::vector<simulated_device>(2));
  one.deallocate(one.allocate(1));
  arenas.deallocate(arenas.allocate(1, stream_id{1}));
  arenas.deallocate(arenas.allocate(1, stream_id{2}));
  two.deallocate(two.allocate(1, 1));
  const auto totals = [](auto& pool) {
    std::vector<std::size_t> sizes;
    pool.for_each_device([&](auto& front, std::size_t device) {
      front.with_observer([&](const auto& seen) {
        EXPECT_EQ(device, sizes.size());
        sizes.push_back(seen.size());
      });
    });
    return sizes;
  };
  EXPECT_EQ(totals(one), (std::vector<std::size_t>{4}));
  EXPECT_EQ(totals(arenas), (std::vector<std::size_t>{8}));
  EXPECT_EQ(totals(two), (std::vector<std::size_t>{0, 4}));
}

}  // namespace
