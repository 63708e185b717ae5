// SPDX-License-Identifier: Apache-2.0
// The longest single call: many blocks of random sizes are allocated, then freed in random order.
//
// Counters: percentiles and the maximum over all allocations and over all frees, in nanoseconds. An allocation that reaches
// the device does not count. `clock` is the time of reading the clock, which each of the others includes.
//
// These times depend on the machine. Tests count the steps of the longest call exactly:
// tests/unit/detail/containers/storage_test.cpp and tests/unit/detail/blocks/free_list_test.cpp.

#include <benchmark/benchmark.h>

#include <cstddef>

#include <tessera/block_handle.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

#include "single_calls.hpp"
#include "subjects.hpp"

namespace {

struct by_handle {
  bench::handles_of<
      tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device>>
      pool{bench::unlimited_device()};
};

template <typename Subject>
void longest(benchmark::State& state) {
  for (auto _ : state) {
    const auto times = bench::run_passes<Subject>(static_cast<std::size_t>(state.range(0)));
    bench::report(state, "allocate", times.allocations);
    bench::report(state, "deallocate", times.frees);
  }
}

void counts(benchmark::internal::Benchmark* b) {
  b->RangeMultiplier(10)->Range(10'000, 1'000'000)->Iterations(1)->Repetitions(1);
}
BENCHMARK(longest<bench::tessera_pytorch>)->Apply(counts);
BENCHMARK(longest<by_handle>)->Apply(counts);
BENCHMARK(longest<bench::reference>)->Apply(counts);
BENCHMARK(longest<bench::host_heap>)->Arg(10'000)->Arg(100'000)->Iterations(1)->Repetitions(1);

}  // namespace

BENCHMARK_MAIN();
