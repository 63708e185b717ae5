// SPDX-License-Identifier: Apache-2.0
// The time of an allocation and a free where each block is freed before the next allocation.

#include <benchmark/benchmark.h>

#include "subjects.hpp"

namespace {

using namespace tessera::literals;

template <typename Subject>
void hot_pair(benchmark::State& state) {
  Subject subject;
  bench::run_hot_pairs(state, subject.pool);
}

BENCHMARK(hot_pair<bench::tessera_pytorch>)->Arg(1_KiB)->Arg(5_MiB);
BENCHMARK(hot_pair<bench::reference>)->Arg(1_KiB)->Arg(5_MiB);
BENCHMARK(hot_pair<bench::tessera_locked>)->Arg(1_KiB)->Arg(5_MiB);
BENCHMARK(hot_pair<bench::reference_with_mutex>)->Arg(1_KiB)->Arg(5_MiB);
BENCHMARK(hot_pair<bench::host_heap>)->Arg(1_KiB);

}  // namespace

BENCHMARK_MAIN();
