// SPDX-License-Identifier: Apache-2.0
// The same allocator for several threads: one word differs.
#include <cstdint>
#include <cstdio>
#include <thread>
#include <vector>

#include <tessera/adaptor/locked.hpp>
#include <tessera/adaptor/per_stream.hpp>
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

int main() {
  // One mutex, which nobody holds while the device is asked: for threads that share streams, or allocate now and then.
  tessera::locked<tessera::pytorch<>, tessera::simulated_device> simple;
  // A mutex for each stream: for threads that allocate all the time, on streams of their own.
  tessera::per_stream<tessera::pytorch<>, tessera::simulated_device> fast;
  return serve_four_threads(simple) && serve_four_threads(fast) ? 0 : 1;
}
