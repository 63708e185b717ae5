// SPDX-License-Identifier: Apache-2.0
// The time of a free and an allocation among a thousand live blocks: of 512 bytes to 64 MiB, or of up to 64 KiB.

#include <benchmark/benchmark.h>

#include <array>
#include <cstdint>
#include <random>
#include <vector>

#include "subjects.hpp"

namespace {

template <typename Subject, typename SizeOf>
void run_pairs(benchmark::State& state, SizeOf size_of) {
  Subject subject;
  auto& pool = subject.pool;
  std::mt19937_64 random(20241121);
  std::vector<std::size_t> sizes(4096);
  for (std::size_t& bytes : sizes) bytes = size_of(random);
  std::array<void*, 1000> live{};
  std::size_t turn = 0;
  for (void*& p : live) p = pool.try_allocate(sizes[turn++ % sizes.size()]);
  for (auto _ : state) {
    void*& p = live[(turn * 2654435761u >> 7) % live.size()];
    pool.deallocate(p);
    p = pool.try_allocate(sizes[turn++ % sizes.size()]);
    benchmark::DoNotOptimize(p);
  }
  for (void* p : live) pool.deallocate(p);
}

template <typename Subject>
void mixed_sizes(benchmark::State& state) {
  run_pairs<Subject>(
      state, [](std::mt19937_64& random) { return (std::size_t{512} << (random() % 17)) + random() % 512; });
}
template <typename Subject>
void small_sizes(benchmark::State& state) {
  run_pairs<Subject>(state, [](std::mt19937_64& random) { return 1 + random() % 65536; });
}

BENCHMARK(mixed_sizes<bench::tessera_pytorch>);
BENCHMARK(mixed_sizes<bench::reference>);
BENCHMARK(mixed_sizes<bench::tessera_locked>);
BENCHMARK(mixed_sizes<bench::reference_with_mutex>);
BENCHMARK(mixed_sizes<bench::host_heap>);
BENCHMARK(small_sizes<bench::tessera_pytorch>);
BENCHMARK(small_sizes<bench::reference>);
BENCHMARK(small_sizes<bench::tessera_locked>);
BENCHMARK(small_sizes<bench::reference_with_mutex>);
BENCHMARK(small_sizes<bench::host_heap>);

}  // namespace

BENCHMARK_MAIN();
