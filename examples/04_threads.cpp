// SPDX-License-Identifier: Apache-2.0
// caching_allocator is for one thread. Front ends wrap it: locked and per_stream for several threads, per_device for several
// devices. Code that uses locked or per_stream stays the same; per_device also takes the number of a device.
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

/// Four threads allocate, each on its own stream. The main thread frees the blocks that remain.
template <typename Allocator>
bool serve_four_threads(Allocator& allocator) {
  std::vector<void*> results(4);
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < results.size(); ++t) {
    threads.emplace_back([&allocator, &results, t] {
      for (int i = 0; i < 1000; ++i) allocator.deallocate(allocator.allocate(5_MiB, tessera::stream_id{t}));
      results[t] = allocator.allocate(1_MiB, tessera::stream_id{t});
    });
  }
  for (std::thread& t : threads) t.join();
  for (void* p : results) allocator.deallocate(p);
  std::printf("reserved %zu MiB, live %zu\n", allocator.current_usage().reserved >> 20,
              allocator.current_usage().allocated);
  return allocator.audit() == nullptr && allocator.current_usage().allocated == 0;
}

/// Two devices, each with its own allocator. deallocate finds the device of a block.
bool serve_two_devices() {
  std::vector<tessera::provider::simulated_device> devices;
  for (unsigned d = 0; d < 2; ++d)
    devices.emplace_back(tessera::provider::simulated_device::options{.device = d});
  tessera::concurrent::per_device<tessera::concurrent::locked<
      tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device>>>
      all(std::move(devices));
  void* first = all.allocate(5_MiB, 0);
  void* second = all.allocate(5_MiB, 1);
  const bool separate = all.device_of(first) == 0 && all.device_of(second) == 1;
  all.deallocate(first);
  all.deallocate(second);
  return separate && all.audit() == nullptr;
}

int main() {
  // One mutex, unlocked while the device acquires or releases a segment. Choose it if threads share streams.
  tessera::concurrent::locked<
      tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device>>
      simple;
  // One mutex for each stream. Choose it if threads allocate often, each on its own stream.
  tessera::concurrent::per_stream<
      tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device>>
      fast;
  return serve_four_threads(simple) && serve_four_threads(fast) && serve_two_devices() ? 0 : 1;
}
