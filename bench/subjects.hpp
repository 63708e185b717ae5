// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdlib>
#include <mutex>
#include <utility>

#include <tessera/block_handle.hpp>
#include <tessera/concurrent/locked.hpp>
#include <tessera/concurrent/per_stream.hpp>
#include <tessera/core/bytes.hpp>
#include <tessera/core/types.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

#include "reference_implementation.hpp"

/// The allocators that the benchmarks compare. Each has a member `pool` with the same functions.
namespace bench {

/// A simulated device that serves every request.
inline tessera::provider::simulated_device unlimited_device() {
  return tessera::provider::simulated_device({.capacity = tessera::max_request});
}

/// For one thread.
struct tessera_pytorch {
  tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device> pool{
      unlimited_device()};
};
struct reference {
  reference_implementation<tessera::provider::simulated_device> pool{unlimited_device()};
};

/// For several threads.
struct tessera_locked {
  tessera::concurrent::locked<
      tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device>>
      pool{unlimited_device()};
};
struct tessera_per_stream {
  tessera::concurrent::per_stream<
      tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device>>
      pool{unlimited_device()};
};
struct reference_with_mutex {
  reference_implementation<tessera::provider::simulated_device, std::mutex> pool{unlimited_device()};
};

/// Allocates and frees by handle.
template <typename Allocator>
struct handles_of {
  template <typename... Given>
  explicit handles_of(Given&&... given) : inside(std::forward<Given>(given)...) {}

  Allocator inside;
  tessera::block_handle try_allocate(std::size_t bytes) { return inside.allocate_by_handle(bytes); }
  void deallocate(tessera::block_handle h) { inside.deallocate(h); }
  auto& provider() { return inside.provider(); }
  [[nodiscard]] std::size_t metadata_bytes() const { return inside.metadata_bytes(); }
};

/// Frees each block before the next allocation. Another block keeps the segment.
template <typename Pool>
void run_hot_pairs(benchmark::State& state, Pool& pool) {
  const auto bytes = static_cast<std::size_t>(state.range(0));
  void* const segment_stays = pool.try_allocate(512);
  for (auto _ : state) {
    void* p = pool.try_allocate(bytes);
    benchmark::DoNotOptimize(p);
    pool.deallocate(p);
  }
  pool.deallocate(segment_stays);
}

/// malloc and free, which know no streams and no device.
struct host_heap {
  struct {
    static void* try_allocate(std::size_t bytes, tessera::stream_id = {}) { return std::malloc(bytes); }
    static void deallocate(void* p) { std::free(p); }
    static void record_stream(void*, tessera::stream_id) {}
    static void trim() {}
    auto& provider() { return *this; }
    static void hold_events(bool) {}
  } pool;
};

}  // namespace bench
