// SPDX-License-Identifier: Apache-2.0
// The time of a hit without statistics, without streams, by handle, and with a lock.
//
// Counters: the size of the allocator, and the device calls of all hits.

#include <benchmark/benchmark.h>

#include <array>
#include <cstddef>
#include <utility>

#include <tessera/extension/count_totals.hpp>

#include "subjects.hpp"

namespace {

using namespace tessera::literals;
using tessera::provider::simulated_device;

/// All work runs in one order: the allocator needs no events and compares no streams.
using one_stream = tessera::recipe::with<tessera::recipe::pytorch<>, tessera::policy::reuse_immediately>;

struct no_statistics {
  tessera::caching_allocator<tessera::recipe::pytorch<>, simulated_device, tessera::extension::count_totals>
      pool{bench::unlimited_device()};
};
struct no_streams {
  tessera::caching_allocator<one_stream, simulated_device> pool{bench::unlimited_device()};
};
struct stripped {
  tessera::caching_allocator<one_stream, simulated_device, tessera::extension::count_totals> pool{
      bench::unlimited_device()};
};

/// Allocates and frees by handle.
struct by_handle {
  struct {
    tessera::caching_allocator<tessera::recipe::pytorch<>, simulated_device> inside{
        bench::unlimited_device()};
    tessera::block_handle try_allocate(std::size_t bytes) { return inside.allocate_by_handle(bytes); }
    void deallocate(tessera::block_handle h) { inside.deallocate(h); }
    simulated_device& provider() { return inside.provider(); }
  } pool;
};

template <typename Pool>
std::size_t device_calls(Pool& pool) {
  const auto count = [](simulated_device& d) {
    const simulated_device::counts& c = d.calls();
    return c.acquire + c.release + c.record + c.query + c.wait + c.discard;
  };
  if constexpr (requires { pool.provider().calls(); }) {
    return count(pool.provider());
  } else {
    return pool.visit_provider(count);
  }
}

/// Frees each block before the next allocation.
template <typename Subject>
void freed_at_once(benchmark::State& state) {
  Subject subject;
  auto& pool = subject.pool;
  auto segment_stays = pool.try_allocate(512);
  const std::size_t before = device_calls(pool);
  for (auto _ : state) {
    auto p = pool.try_allocate(1_KiB);
    benchmark::DoNotOptimize(p);
    pool.deallocate(p);
  }
  state.counters["device_calls"] = static_cast<double>(device_calls(pool) - before);
  state.counters["bytes"] = sizeof(pool);
  pool.deallocate(segment_stays);
}

/// Frees each block after seven more allocations.
template <typename Subject>
void freed_later(benchmark::State& state) {
  Subject subject;
  auto& pool = subject.pool;
  std::array<decltype(pool.try_allocate(1)), 8> live{};
  for (auto& p : live) p = pool.try_allocate(1_KiB);
  const std::size_t before = device_calls(pool);
  for (std::size_t turn = 0; auto _ : state) {
    auto& p = live[turn++ % live.size()];
    pool.deallocate(p);
    p = pool.try_allocate(1_KiB);
    benchmark::DoNotOptimize(p);
  }
  state.counters["device_calls"] = static_cast<double>(device_calls(pool) - before);
  for (auto& p : live) pool.deallocate(p);
}

BENCHMARK(freed_at_once<bench::tessera_pytorch>);
BENCHMARK(freed_at_once<no_statistics>);
BENCHMARK(freed_at_once<no_streams>);
BENCHMARK(freed_at_once<stripped>);
BENCHMARK(freed_at_once<by_handle>);
BENCHMARK(freed_at_once<bench::tessera_locked>);
BENCHMARK(freed_at_once<bench::tessera_per_stream>);

BENCHMARK(freed_later<bench::tessera_pytorch>);
BENCHMARK(freed_later<no_statistics>);
BENCHMARK(freed_later<no_streams>);
BENCHMARK(freed_later<stripped>);
BENCHMARK(freed_later<by_handle>);
BENCHMARK(freed_later<bench::tessera_locked>);
BENCHMARK(freed_later<bench::tessera_per_stream>);
BENCHMARK(freed_later<bench::reference>);
BENCHMARK(freed_later<bench::reference_with_mutex>);

}  // namespace

BENCHMARK_MAIN();
