// SPDX-License-Identifier: Apache-2.0
// What CUDA's driver costs on the GPU of this machine: single calls, and all calls of recorded programs with some recipes.
// Arguments are recordings; without any, those in examples/traces. Without a driver there are no benchmarks.
//
// `driver<CALL>/MIB`: one call for a segment or a chunk of that size; the times of the other calls around it are left out.
// `driver_replay<RECIPE>/PROGRAM`: the program's requests and frees on one stream, from an empty cache, without its work.
//
// Counters of a replay: reserved_MiB is peak reserved; calls and driver_ms are the driver's calls that can take long, and
// their time, which counts whole microseconds of each call; most_us is the longest; host_ns is the other time of an operation.

#include <benchmark/benchmark.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <tessera/provider/cuda_driver.hpp>
#include <tessera/provider/timed.hpp>
#include <tessera/recipe/stitched.hpp>
#include <tessera/tessera.hpp>

#include "replayed.hpp"

namespace {

using namespace tessera::literals;
using tessera::page_kind;
using tessera::provider::call_times;
using tessera::provider::cuda_device;
using clock_type = std::chrono::steady_clock;

/// The calls in the order in which memory of a range passes them, and those of a segment and of host memory.
enum class call : unsigned char {
  acquire,
  release,
  reserve,
  create,
  map,
  grant,
  unmap,
  destroy,
  unreserve,
  register_host,
  unregister_host
};
constexpr std::pair<call, const char*> calls[] = {{call::acquire, "cuMemAlloc"},
                                                  {call::release, "cuMemFree"},
                                                  {call::reserve, "cuMemAddressReserve"},
                                                  {call::create, "cuMemCreate"},
                                                  {call::map, "cuMemMap"},
                                                  {call::grant, "cuMemSetAccess"},
                                                  {call::unmap, "cuMemUnmap"},
                                                  {call::destroy, "cuMemRelease"},
                                                  {call::unreserve, "cuMemAddressFree"},
                                                  {call::register_host, "cuMemHostRegister"},
                                                  {call::unregister_host, "cuMemHostUnregister"}};

/// Makes one call after another, and keeps the time of one kind of them.
class timed_calls {
 public:
  explicit timed_calls(call which) noexcept : which_(which) {}
  template <typename F>
  bool operator()(call made, F f) {
    const auto start = clock_type::now();
    const bool works = f();
    if (made == which_) seconds_ = std::chrono::duration<double>(clock_type::now() - start).count();
    return works;
  }
  [[nodiscard]] double seconds() const noexcept { return seconds_; }

 private:
  call which_;
  double seconds_ = 0;
};

bool use_segment(cuda_device& device, timed_calls& time, std::size_t bytes) {
  void* p = nullptr;
  return time(call::acquire, [&] { return (p = device.acquire(bytes)) != nullptr; }) &&
         time(call::release, [&] { return device.release(p, bytes); });
}

bool use_chunk(cuda_device& device, timed_calls& time, std::size_t bytes) {
  void* p = nullptr;
  cuda_device::physical memory{};
  const std::size_t page = device.page_size(page_kind::normal);
  return time(call::reserve, [&] { return (p = device.reserve(bytes, page)) != nullptr; }) &&
         time(call::create, [&] { return device.create(bytes, page_kind::normal, memory); }) &&
         time(call::map, [&] { return device.map(p, bytes, memory); }) &&
         time(call::grant, [&] { return device.grant(p, bytes); }) &&
         time(call::unmap, [&] { return device.unmap(p, bytes); }) &&
         time(call::destroy, [&] { return device.destroy(memory); }) &&
         time(call::unreserve, [&] { return device.unreserve(p, bytes); });
}

bool use_host(cuda_device& device, timed_calls& time, std::size_t bytes) {
  constexpr std::size_t page = 4096;
  void* const p = std::aligned_alloc(page, bytes);
  if (p == nullptr) return false;
  for (std::size_t at = 0; at < bytes; at += page) static_cast<volatile char*>(p)[at] = 1;
  const bool works = time(call::register_host, [&] { return device.register_memory(p, bytes); }) &&
                     time(call::unregister_host, [&] { return device.unregister_memory(p); });
  std::free(p);
  return works;
}

void measure_call(benchmark::State& state, cuda_device& device, call which) {
  const std::size_t bytes = static_cast<std::size_t>(state.range(0)) * 1_MiB;
  auto* const use = which <= call::release ? use_segment : which <= call::unreserve ? use_chunk : use_host;
  for (auto _ : state) {
    timed_calls time(which);
    if (!use(device, time, bytes)) return state.SkipWithError(device.last_error().c_str());
    state.SetIterationTime(time.seconds());
  }
}

call_times::summary sum_of(const call_times& times) {
  call_times::summary all;
  for (std::size_t i = 0; i < call_times::count; ++i) {
    const call_times::summary of = times.of(static_cast<tessera::provider::provider_call::kind>(i));
    all.count += of.count;
    all.total += of.total;
    if (of.max > all.max) all.max = of.max;
  }
  return all;
}

template <typename Recipe>
void measure_replay(benchmark::State& state, cuda_device& device, const bench::recording& run) {
  using timed = tessera::provider::timed<cuda_device>;
  const tessera::trace::program program(run);
  std::vector<void*> blocks(program.slot_count());
  call_times times;
  call_times::summary all;
  std::size_t reserved = 0;
  double seconds = 0;
  for (auto _ : state) {
    tessera::caching_allocator<Recipe, timed> pool{timed(device, times)};
    times.reset();
    const auto start = clock_type::now();
    for (std::size_t i = 0; i < program.events().size(); ++i) {
      const bench::event& e = program.events()[i];
      void*& p = blocks[program.slot(i)];
      if (e.what == bench::event::kind::free) pool.deallocate(p);
      if (e.what != bench::event::kind::allocate) continue;
      p = pool.try_allocate(e.bytes);
      if (p == nullptr) return state.SkipWithError("out of memory");
      const std::size_t now = pool.current_usage().reserved;
      if (now > reserved) reserved = now;
    }
    seconds = std::chrono::duration<double>(clock_type::now() - start).count();
    state.SetIterationTime(seconds);
    all = sum_of(times);  // without the calls that empty the cache
  }
  const auto operations = static_cast<double>(program.events().size());
  state.counters["reserved_MiB"] = static_cast<double>(reserved) / static_cast<double>(1_MiB);
  state.counters["calls"] = static_cast<double>(all.count);
  state.counters["driver_ms"] = static_cast<double>(all.total) * 1e-3;
  state.counters["most_us"] = static_cast<double>(all.max);
  state.counters["host_ns"] = (seconds * 1e9 - static_cast<double>(all.total) * 1e3) / operations;
}

template <typename Recipe>
void add_replay(const char* recipe, cuda_device& device, const std::string& title,
                const bench::shared_recording& run) {
  benchmark::RegisterBenchmark(
      ("driver_replay<" + std::string(recipe) + ">/" + title).c_str(),
      [&device, run](benchmark::State& state) { measure_replay<Recipe>(state, device, *run); })
      ->UseManualTime()
      ->Iterations(1)
      ->Unit(benchmark::kMillisecond);
}

void add(cuda_device& device, const std::string& title, const bench::shared_recording& run) {
  add_replay<tessera::recipe::pytorch<>>("pytorch", device, title, run);
  add_replay<tessera::recipe::pytorch_family::expandable>("pytorch_expandable", device, title, run);
  add_replay<tessera::recipe::stitched>("stitched", device, title, run);
  add_replay<tessera::recipe::passthrough>("passthrough", device, title, run);
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  std::optional<tessera::provider::cuda_driver> library;
  try {
    library.emplace();
  } catch (const tessera::provider::cuda_driver_error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 0;
  }
  if (library->devices() == 0) return 0;
  cuda_device device(*library, 0);
  for (const auto& [which, name] : calls) {
    benchmark::RegisterBenchmark(
        ("driver<" + std::string(name) + ">").c_str(),
        [&device, which = which](benchmark::State& state) { measure_call(state, device, which); })
        ->UseManualTime()
        ->Iterations(50)
        ->Arg(2)
        ->Arg(16)
        ->Arg(256)
        ->Arg(2048)
        ->Unit(benchmark::kMicrosecond);
  }
  const auto add_all = [&](const std::string& title, const bench::shared_recording& run) {
    add(device, title, run);
  };
  if (!bench::for_each_argument(argc, argv, add_all)) return 1;
  benchmark::RunSpecifiedBenchmarks();
}
