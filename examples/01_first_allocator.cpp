// SPDX-License-Identifier: Apache-2.0
// Start here. A caching allocator with PyTorch's decisions, a simulated device and two streams.
//
// Expected output: reserved 320 MiB, of it cached 20 and pending 300
//
// Next: tessera/recipe/pytorch.hpp has the recipe that decides here, a struct of eight policies.
#include <cstdio>

#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

int main() {
  using namespace tessera::literals;

  tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device> allocator;
  void* weights = allocator.allocate(300_MiB);
  void* batch = allocator.allocate(5_MiB, tessera::stream_id{1});          // for work on stream 1
  if (!allocator.record_stream(weights, tessera::stream_id{1})) return 1;  // stream 1 also reads weights
  allocator.deallocate(batch);
  allocator.deallocate(weights);  // pending until a later call sees stream 1 reach this point

  const tessera::usage now = allocator.current_usage();
  std::printf("reserved %zu MiB, of it cached %zu and pending %zu\n", now.reserved >> 20, now.cached >> 20,
              now.pending() >> 20);
  return allocator.audit() == nullptr ? 0 : 1;
}
