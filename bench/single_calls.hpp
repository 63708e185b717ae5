// SPDX-License-Identifier: Apache-2.0
#pragma once

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

#include "xorshift.hpp"

/// Times each call of an allocator.
///
/// The clock is steady_clock, because it is read without a system call. Reading the CPU time of the thread needs one, which
/// takes longer than most allocations. But steady_clock also counts interruptions. Therefore the same calls run in three
/// passes, and the shortest time of each call counts: a call is seldom interrupted three times. What a call does in each
/// pass counts, such as a rehash or a large request to the host heap; most page faults are in the first pass.
namespace bench {

/// Nanoseconds of each call.
struct single_calls {
  static constexpr std::int64_t not_measured = std::numeric_limits<std::int64_t>::max();

  explicit single_calls(std::size_t count) : allocations(count, not_measured), frees(count, not_measured) {}
  std::vector<std::int64_t> allocations;  ///< those that reached the device are not measured
  std::vector<std::int64_t> frees;
};

template <typename F>
std::int64_t time_of(F call) {
  const auto start = std::chrono::steady_clock::now();
  call();
  return std::chrono::nanoseconds(std::chrono::steady_clock::now() - start).count();
}

/// Returns how often a pool reached the device, if it counts that.
template <typename Pool>
std::uint64_t device_calls(Pool& pool) {
  if constexpr (requires { pool.provider().calls(); }) {
    return pool.provider().calls().acquire;
  } else {
    return 0;
  }
}

/// Allocates blocks of 512 B to 1 MiB, frees them in random order, and keeps the times that are shorter than before.
template <typename Subject>
void run_pass(single_calls& shortest) {
  Subject subject;
  auto& pool = subject.pool;
  xorshift random;
  std::vector<decltype(pool.try_allocate(1))> blocks(shortest.frees.size());
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const std::size_t base = std::size_t{512} << random.below(11);
    const std::size_t bytes = base + random.below(base);
    const std::uint64_t before = device_calls(pool);
    const std::int64_t time = time_of([&] { blocks[i] = pool.try_allocate(bytes); });
    if (!blocks[i]) std::abort();
    if (device_calls(pool) == before) shortest.allocations[i] = std::min(shortest.allocations[i], time);
  }
  // The addresses are shuffled, so that the loop below does not wait for them.
  for (std::size_t i = blocks.size(); i-- > 1;) std::swap(blocks[i], blocks[random.below(i + 1)]);
  for (std::size_t i = 0; i < blocks.size(); ++i)
    shortest.frees[i] = std::min(shortest.frees[i], time_of([&] { pool.deallocate(blocks[i]); }));
}
template <typename Subject>
single_calls run_passes(std::size_t count) {
  single_calls shortest(count);
  for (int pass = 0; pass < 3; ++pass) run_pass<Subject>(shortest);
  return shortest;
}

/// Reports percentiles and the maximum, and the time of reading the clock, which each time includes.
inline void report(benchmark::State& state, const std::string& call, std::vector<std::int64_t> times) {
  std::erase(times, single_calls::not_measured);
  std::sort(times.begin(), times.end());
  const auto note = [&](const char* name, std::size_t longer) {
    state.counters[call + name] = static_cast<double>(times[times.size() - 1 - longer]);
  };
  note("_p50", times.size() / 2);
  note("_p99", times.size() / 100);
  note("_p99.99", times.size() / 10'000);
  note("_max", 0);

  std::vector<std::int64_t> nothing(10'000);
  for (std::int64_t& time : nothing) time = time_of([] {});
  std::sort(nothing.begin(), nothing.end());
  state.counters["clock"] = static_cast<double>(nothing[nothing.size() / 2]);
}

}  // namespace bench
