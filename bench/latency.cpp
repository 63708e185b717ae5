// SPDX-License-Identifier: Apache-2.0
// The time of an allocation and a free where each block is freed before the next allocation.

#include <benchmark/benchmark.h>

#include "subjects.hpp"

namespace {

using namespace tessera::literals;

template <typename Subject>
void hot_pair(benchmark::State& state) {
  Subject subject;
  auto& pool = subject.pool;
  const auto bytes = static_cast<std::size_t>(state.range(0));
  void* const segment_stays = pool.try_allocate(512);
  for (auto _ : state) {
    void* p = pool.try_allocate(bytes);
    benchmark::DoNotOptimize(p);
    pool.deallocate(p);
  }
  pool.deallocate(segment_stays);
}

BENCHMARK(hot_pair<bench::tessera_pytorch>)->Arg(1_KiB)->Arg(5_MiB);
BENCHMARK(hot_pair<bench::reference>)->Arg(1_KiB)->Arg(5_MiB);
BENCHMARK(hot_pair<bench::tessera_locked>)->Arg(1_KiB)->Arg(5_MiB);
BENCHMARK(hot_pair<bench::reference_with_mutex>)->Arg(1_KiB)->Arg(5_MiB);
BENCHMARK(hot_pair<bench::host_heap>)->Arg(1_KiB);

}  // namespace

BENCHMARK_MAIN();
