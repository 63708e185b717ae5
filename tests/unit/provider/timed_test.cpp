// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <cstdint>

#include <gtest/gtest.h>

#include <tessera/provider/simulated_device.hpp>
#include <tessera/provider/timed.hpp>
#include <tessera/tessera.hpp>

namespace {

using namespace tessera;

/// A clock that advances with the device's calls, as the simulation counts them.
struct device_clock {
  using duration = std::chrono::nanoseconds;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::time_point<device_clock>;
  static inline const simulated_device* device = nullptr;
  static time_point now() noexcept {
    return time_point(duration(static_cast<std::int64_t>(device->now_ns())));
  }
};
static_assert(paged_provider<timed<simulated_device>> && event_provider<timed<simulated_device>> &&
              virtual_memory_provider<timed<simulated_device>>);

simulated_device device_at_cost() {
  return simulated_device{simulated_device::options{
      .capacity = 1_MiB,
      .costs = {.acquire = 3'000, .acquire_per_mib = 0, .release = 5'000, .release_per_mib = 0}}};
}

TEST(timed, adds_up_the_calls_that_worked) {
  simulated_device device = device_at_cost();
  device_clock::device = &device;
  call_times times;
  {
    caching_allocator<pinned, timed<simulated_device, device_clock>> pool({device, times});
    void* const p = pool.allocate(512_KiB);
    (void)pool.allocate(256_KiB);
    EXPECT_EQ(times.acquire(), (call_times::summary{.count = 2, .total = 6, .max = 3, .min = 3}));
    EXPECT_EQ(times.acquire().average(), 3.0);
    EXPECT_EQ(pool.try_allocate(2_MiB), nullptr);
    EXPECT_EQ(times.acquire().count, 2u);
    EXPECT_EQ(times.release(), call_times::summary{});
    pool.deallocate(p);
    pool.trim();
    EXPECT_EQ(times.release(), (call_times::summary{.count = 1, .total = 5, .max = 5, .min = 5}));
    times.reset();
    EXPECT_EQ(times.release(), call_times::summary{});
  }
  EXPECT_EQ(times.release().count, 1u);
}

TEST(timed, keeps_the_longest_and_the_shortest) {
  call_times::summary seen;
  EXPECT_EQ(seen.average(), 0.0);
  for (std::uint64_t us : {4u, 1u, 7u}) seen.add(us);
  EXPECT_EQ(seen, (call_times::summary{.count = 3, .total = 12, .max = 7, .min = 1}));
}

TEST(timed, times_pages_too) {
  simulated_device device{simulated_device::options{
      .costs = {.reserve = 7'000, .create = 2'000, .create_per_mib = 0, .map = 4'000, .map_per_entry = 0}}};
  device_clock::device = &device;
  call_times times;
  using call = provider_call;
  caching_allocator<pytorch_family::expandable, timed<simulated_device, device_clock>> pool({device, times});
  pool.deallocate(pool.allocate(64_MiB));
  EXPECT_EQ(times.acquire(), call_times::summary{});
  EXPECT_EQ(times.of(call::reserve), (call_times::summary{.count = 1, .total = 7, .max = 7, .min = 7}));
  EXPECT_EQ(times.of(call::create), (call_times::summary{.count = 4, .total = 8, .max = 2, .min = 2}));
  EXPECT_EQ(times.of(call::map), (call_times::summary{.count = 4, .total = 16, .max = 4, .min = 4}));
  EXPECT_EQ(times.of(call::grant).count, simulated_device::map_grants_access ? 0u : 4u);
  EXPECT_EQ(times.of(call::unmap).count, 0u);
  pool.trim();
  EXPECT_EQ(times.of(call::unmap).count, 4u);
  EXPECT_EQ(times.of(call::destroy).count, 4u);
  EXPECT_EQ(times.of(call::synchronize).count, 1u);
  EXPECT_EQ(times.of(call::unreserve).count, 1u);
}

TEST(timed, times_events) {
  simulated_device device;
  device_clock::device = &device;
  call_times times;
  using call = provider_call;
  caching_allocator<pytorch_family::native, timed<simulated_device, device_clock>> pool({device, times});
  void* const p = pool.allocate(1_MiB);
  (void)pool.record_stream(p, stream_id{1});
  pool.deallocate(p);
  EXPECT_EQ(times.of(call::record).count, 1u);
  EXPECT_EQ(times.of(call::wait).count, 0u);
  pool.trim();
  EXPECT_EQ(times.of(call::wait).count, 1u);
  times.reset();
  EXPECT_EQ(times.of(call::record), call_times::summary{});
}

}  // namespace
