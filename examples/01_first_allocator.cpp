// SPDX-License-Identifier: Apache-2.0
// A working caching allocator in six lines.
#include <cstdio>

#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

int main() {
  using namespace tessera::literals;

  tessera::caching_allocator<tessera::pytorch<>, tessera::simulated_device> pool;
  void* weights = pool.allocate(300_MiB);
  void* batch = pool.allocate(5_MiB, tessera::stream_id{1});          // on a stream of its own
  if (!pool.record_stream(weights, tessera::stream_id{1})) return 1;  // stream 1 reads the weights too
  pool.deallocate(batch);
  pool.deallocate(weights);  // reused once stream 1 has come past this point

  const tessera::usage now = pool.now();
  std::printf("reserved %zu MiB, of it cached %zu and pending %zu\n", now.reserved >> 20, now.cached >> 20,
              now.pending >> 20);
  return pool.audit() == nullptr ? 0 : 1;
}
