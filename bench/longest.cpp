// SPDX-License-Identifier: Apache-2.0
// The longest single call: many blocks of random sizes are allocated, then freed in random order.
//
// Counters: percentiles and the maximum over all allocations and over all frees, in nanoseconds. An allocation that reaches
// the device does not count. `clock` is the time of reading the clock, which each of the others includes.
//
// The clock is steady_clock, because it is read without a system call. Reading the CPU time of the thread needs one, which
// takes longer than most allocations. But steady_clock also counts interruptions. Therefore the same calls run in three
// passes, and the shortest time of each call counts: a call is seldom interrupted three times. What a call does in each
// pass counts, such as a rehash or a large request to the host heap; most page faults are in the first pass.
//
// These times depend on the machine. Tests count the steps of the longest call exactly:
// tests/unit/detail/containers/storage_test.cpp and tests/unit/detail/blocks/free_list_test.cpp.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <tessera/block_handle.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

#include "subjects.hpp"
#include "xorshift.hpp"

namespace {

using clock = std::chrono::steady_clock;
using nanoseconds = std::vector<std::int64_t>;

constexpr std::int64_t not_measured = std::numeric_limits<std::int64_t>::max();

/// Allocates and frees by handle.
struct by_handle {
  struct {
    tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device> inside{
        bench::unlimited_device()};
    tessera::block_handle try_allocate(std::size_t bytes) { return inside.allocate_by_handle(bytes); }
    void deallocate(tessera::block_handle h) { inside.deallocate(h); }
    tessera::provider::simulated_device& provider() { return inside.provider(); }
  } pool;
};

template <typename Pool>
std::uint64_t device_calls(Pool& pool) {
  if constexpr (requires { pool.provider().calls(); }) {
    return pool.provider().calls().acquire;
  } else {
    return 0;
  }
}

template <typename F>
std::int64_t time_of(F call) {
  const auto start = clock::now();
  call();
  return std::chrono::nanoseconds(clock::now() - start).count();
}

/// Returns a size from 512 B to 1 MiB. Each interval between two powers of two is equally likely.
std::size_t random_size(bench::xorshift& random) {
  const std::size_t base = std::size_t{512} << random.below(11);
  return base + random.below(base);
}

/// Keeps the times that are shorter than those of earlier passes.
template <typename Subject>
void run_pass(nanoseconds& allocations, nanoseconds& frees) {
  Subject subject;
  auto& pool = subject.pool;
  bench::xorshift random;
  std::vector<decltype(pool.try_allocate(1))> blocks(frees.size());
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const std::size_t bytes = random_size(random);
    const std::uint64_t before = device_calls(pool);
    const std::int64_t time = time_of([&] { blocks[i] = pool.try_allocate(bytes); });
    if (!blocks[i]) std::abort();
    if (device_calls(pool) == before) allocations[i] = std::min(allocations[i], time);
  }
  // The addresses are shuffled, so that the loop below does not wait for them.
  for (std::size_t i = blocks.size(); i-- > 1;) std::swap(blocks[i], blocks[random.below(i + 1)]);
  for (std::size_t i = 0; i < blocks.size(); ++i)
    frees[i] = std::min(frees[i], time_of([&] { pool.deallocate(blocks[i]); }));
}

void report(benchmark::State& state, const std::string& call, nanoseconds times) {
  std::erase(times, not_measured);
  std::sort(times.begin(), times.end());
  const auto note = [&](const char* name, std::size_t longer) {
    state.counters[call + name] = static_cast<double>(times[times.size() - 1 - longer]);
  };
  note("_p50", times.size() / 2);
  note("_p99", times.size() / 100);
  note("_p99.99", times.size() / 10'000);
  note("_max", 0);
}

template <typename Subject>
void longest(benchmark::State& state) {
  const auto count = static_cast<std::size_t>(state.range(0));
  nanoseconds allocations(count, not_measured);
  nanoseconds frees(count, not_measured);
  for (auto _ : state) {
    for (int pass = 0; pass < 3; ++pass) run_pass<Subject>(allocations, frees);
  }
  report(state, "allocate", allocations);
  report(state, "deallocate", frees);
  nanoseconds nothing(10'000);
  for (std::int64_t& time : nothing) time = time_of([] {});
  std::nth_element(nothing.begin(), nothing.begin() + 5'000, nothing.end());
  state.counters["clock"] = static_cast<double>(nothing[5'000]);
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
