// SPDX-License-Identifier: Apache-2.0
// The same allocator for several threads, or for several devices: one word differs.
#include <cstdint>
#include <cstdio>
#include <thread>
#include <utility>
#include <vector>

#include <tessera/concurrent/locked.hpp>
#include <tessera/concurrent/per_device.hpp>
#include <tessera/concurrent/per_stream.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

using namespace tessera::literals;

/// Four threads allocate on streams of their own; what they leave is freed by another one.
template <typename Pool>
bool serve_four_threads(Pool& pool) {
  std::vector<void*> results(4);
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < results.size(); ++t) {
    threads.emplace_back([&pool, &results, t] {
      for (int i = 0; i < 1000; ++i) pool.deallocate(pool.allocate(5_MiB, tessera::stream_id{t}));
      results[t] = pool.allocate(1_MiB, tessera::stream_id{t});
    });
  }
  for (std::thread& t : threads) t.join();
  for (void* p : results) pool.deallocate(p);
  std::printf("reserved %zu MiB, live %zu\n", pool.now().reserved >> 20, pool.now().live);
  return pool.audit() == nullptr && pool.now().live == 0;
}

/// Two devices, each with an allocator of its own; a block goes back without saying to which.
bool serve_two_devices() {
  std::vector<tessera::simulated_device> devices;
  for (unsigned d = 0; d < 2; ++d) devices.emplace_back(tessera::simulated_device::options{.device = d});
  tessera::per_device<tessera::pytorch<>, tessera::simulated_device> all(std::move(devices));
  void* here = all.allocate(5_MiB, 0);
  void* there = all.allocate(5_MiB, 1);
  const bool apart = all.device_of(here) == 0 && all.device_of(there) == 1;
  all.deallocate(here);
  all.deallocate(there);
  return apart && all.audit() == nullptr;
}

int main() {
  // One mutex, which nobody holds while the device is asked: for threads that share streams, or allocate now and then.
  tessera::locked<tessera::pytorch<>, tessera::simulated_device> simple;
  // A mutex for each stream: for threads that allocate all the time, on streams of their own.
  tessera::per_stream<tessera::pytorch<>, tessera::simulated_device> fast;
  return serve_four_threads(simple) && serve_four_threads(fast) && serve_two_devices() ? 0 : 1;
}
