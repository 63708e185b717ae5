// SPDX-License-Identifier: Apache-2.0
// The time of an allocation and a free while other threads allocate, and where another thread frees.
//
// Times are elapsed times of one thread.

#include <benchmark/benchmark.h>

#include <array>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include "subjects.hpp"

namespace {

using namespace tessera::literals;
using clock = std::chrono::steady_clock;

constexpr int pairs = 100'000;

double seconds_since(clock::time_point start) {
  return std::chrono::duration<double>(clock::now() - start).count();
}

/// Frees the oldest of eight live blocks before each allocation.
template <typename Pool>
void run_pairs(Pool& pool, tessera::stream_id stream) {
  std::array<void*, 8> live{};
  for (std::size_t i = 0; i < pairs; ++i) {
    void*& p = live[i % live.size()];
    if (p != nullptr) pool.deallocate(p);
    p = pool.try_allocate(1_KiB, stream);
    benchmark::DoNotOptimize(p);
  }
  for (void* p : live) pool.deallocate(p);
}

template <typename Subject>
void own_streams(benchmark::State& state) {
  Subject subject;
  const auto count = static_cast<std::size_t>(state.range(0));
  std::vector<void*> kept(count);
  for (std::size_t t = 0; t < count; ++t) kept[t] = subject.pool.try_allocate(512, tessera::stream_id{t + 1});
  for (auto _ : state) {
    std::barrier ready(static_cast<std::ptrdiff_t>(count));
    std::atomic<double> seconds{0};
    std::vector<std::thread> threads;
    for (std::size_t t = 0; t < count; ++t) {
      threads.emplace_back([&, t] {
        const tessera::stream_id own{t + 1};
        run_pairs(subject.pool, own);
        ready.arrive_and_wait();
        const auto start = clock::now();
        run_pairs(subject.pool, own);
        seconds += seconds_since(start);
      });
    }
    for (std::thread& t : threads) t.join();
    state.SetIterationTime(seconds.load() / static_cast<double>(count) / pairs);
  }
  for (void* p : kept) subject.pool.deallocate(p);
}

/// One thread allocates and another one frees, with at most 256 blocks between them.
template <typename Subject>
void producer_and_consumer(benchmark::State& state) {
  Subject subject;
  std::array<void*, 256> queue{};
  void* const kept = subject.pool.try_allocate(512, tessera::stream_id{1});
  for (auto _ : state) {
    alignas(64) std::atomic<std::size_t> made{0};
    alignas(64) std::atomic<std::size_t> freed{0};
    std::thread consumer([&] {
      for (std::size_t i = 0; i < pairs; ++i) {
        while (made.load(std::memory_order_acquire) <= i) {
        }
        subject.pool.deallocate(queue[i % queue.size()]);
        freed.store(i + 1, std::memory_order_release);
      }
    });
    const auto start = clock::now();
    for (std::size_t i = 0; i < pairs; ++i) {
      while (freed.load(std::memory_order_acquire) + queue.size() <= i) {
      }
      queue[i % queue.size()] = subject.pool.try_allocate(1_KiB, tessera::stream_id{1});
      made.store(i + 1, std::memory_order_release);
    }
    consumer.join();
    state.SetIterationTime(seconds_since(start) / pairs);
  }
  subject.pool.deallocate(kept);
}

void threads(benchmark::internal::Benchmark* b) {
  b->Arg(1)->Arg(2)->Arg(4)->Arg(8)->UseManualTime()->Iterations(20);
}
BENCHMARK(own_streams<bench::tessera_per_stream>)->Apply(threads);
BENCHMARK(own_streams<bench::tessera_locked>)->Apply(threads);
BENCHMARK(own_streams<bench::reference_with_mutex>)->Apply(threads);
BENCHMARK(own_streams<bench::host_heap>)->Apply(threads);

BENCHMARK(producer_and_consumer<bench::tessera_per_stream>)->UseManualTime()->Iterations(20);
BENCHMARK(producer_and_consumer<bench::tessera_locked>)->UseManualTime()->Iterations(20);
BENCHMARK(producer_and_consumer<bench::reference_with_mutex>)->UseManualTime()->Iterations(20);
BENCHMARK(producer_and_consumer<bench::host_heap>)->UseManualTime()->Iterations(20);

}  // namespace

BENCHMARK_MAIN();
