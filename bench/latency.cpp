// SPDX-License-Identifier: Apache-2.0
// What does an allocate and a free cost where the cache has the block?

#include <benchmark/benchmark.h>

#include "subjects.hpp"

namespace {

using namespace tessera::literals;

template <typename Subject>
void hot_pair(benchmark::State& state) {
  Subject subject;
  auto& pool = subject.pool;
  const auto bytes = static_cast<std::size_t>(state.range(0));
  void* const keeps_the_segment = pool.try_allocate(512);
  for (auto _ : state) {
    void* p = pool.try_allocate(bytes);
    benchmark::DoNotOptimize(p);
    pool.deallocate(p);
  }
  pool.deallocate(keeps_the_segment);
}

BENCHMARK(hot_pair<bench::tessera_pytorch>)->Arg(1_KiB)->Arg(5_MiB);
BENCHMARK(hot_pair<bench::textbook_engine>)->Arg(1_KiB)->Arg(5_MiB);
BENCHMARK(hot_pair<bench::tessera_passthrough>)->Arg(1_KiB);
BENCHMARK(hot_pair<bench::host_heap>)->Arg(1_KiB);

}  // namespace

BENCHMARK_MAIN();
