// SPDX-License-Identifier: Apache-2.0
// What does a hit cost that has no statistics, no events, no streams to tell apart; what one by handle, and what a lock?
//
// Beside the time: the size of the allocator, and the calls that hits made to the device.

#include <benchmark/benchmark.h>

#include <array>
#include <cstddef>
#include <utility>

#include "subjects.hpp"
#include "threaded_subjects.hpp"

namespace {

using namespace tessera::literals;
using tessera::count_totals;
using tessera::ignore_events;
using tessera::simulated_device;

/// One order for all work: no events, and no stream is compared.
using one_stream = tessera::with<tessera::pytorch<>, tessera::reuse_ignoring_streams>;

struct no_statistics {
  tessera::caching_allocator<tessera::pytorch<>, simulated_device, ignore_events, count_totals> pool{
      bench::roomy()};
};
struct no_streams {
  tessera::caching_allocator<one_stream, simulated_device> pool{bench::roomy()};
};
struct stripped {
  tessera::caching_allocator<one_stream, simulated_device, ignore_events, count_totals> pool{bench::roomy()};
};

/// The same calls, by handle.
struct by_handle {
  struct {
    tessera::caching_allocator<tessera::pytorch<>, simulated_device> inside{bench::roomy()};
    tessera::handle try_allocate(std::size_t bytes) { return inside.allocate_by_handle(bytes); }
    void deallocate(tessera::handle h) { inside.deallocate(h); }
    simulated_device& device() { return inside.device(); }
  } pool;
};

template <typename Pool>
std::size_t device_calls(Pool& pool) {
  const auto count = [](simulated_device& d) {
    const simulated_device::counts& c = d.calls();
    return c.acquire + c.release + c.record + c.query + c.wait + c.discard;
  };
  if constexpr (requires { pool.device(); }) {
    return count(pool.device());
  } else {
    return pool.with_device(count);
  }
}

/// Each block comes back right after it was handed out.
template <typename Subject>
void back_at_once(benchmark::State& state) {
  Subject subject;
  auto& pool = subject.pool;
  auto keeps_the_segment = pool.try_allocate(512);
  const std::size_t before = device_calls(pool);
  for (auto _ : state) {
    auto p = pool.try_allocate(1_KiB);
    benchmark::DoNotOptimize(p);
    pool.deallocate(p);
  }
  state.counters["device_calls"] = static_cast<double>(device_calls(pool) - before);
  state.counters["bytes"] = sizeof(pool);
  pool.deallocate(keeps_the_segment);
}

/// Each block comes back when seven others have been handed out since.
template <typename Subject>
void back_later(benchmark::State& state) {
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

BENCHMARK(back_at_once<bench::tessera_pytorch>);
BENCHMARK(back_at_once<no_statistics>);
BENCHMARK(back_at_once<no_streams>);
BENCHMARK(back_at_once<stripped>);
BENCHMARK(back_at_once<by_handle>);
BENCHMARK(back_at_once<bench::tessera_locked>);
BENCHMARK(back_at_once<bench::tessera_per_stream>);

BENCHMARK(back_later<bench::tessera_pytorch>);
BENCHMARK(back_later<no_statistics>);
BENCHMARK(back_later<no_streams>);
BENCHMARK(back_later<stripped>);
BENCHMARK(back_later<by_handle>);
BENCHMARK(back_later<bench::tessera_locked>);
BENCHMARK(back_later<bench::tessera_per_stream>);
BENCHMARK(back_later<bench::textbook_engine>);

}  // namespace

BENCHMARK_MAIN();
