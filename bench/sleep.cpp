// SPDX-License-Identifier: Apache-2.0
// Sleep and wake of 1 GiB with saved contents, on host memory.
//
// `by_hand`, in the column of the reference, makes the same calls of the provider, and copies with memcpy.
// `host_heap` is a memcpy to new memory of the heap, and one back to new memory: sleep needs new memory, too.

#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>

#include <tessera/extension/sleep_mode.hpp>
#include <tessera/provider/host_pinned.hpp>
#include <tessera/tessera.hpp>

namespace {

using namespace tessera;
using namespace tessera::literals;

constexpr std::size_t bytes = 1_GiB;

provider::host_pinned memory() {
  return provider::host_pinned({.capacity = bytes, .pin = provider::host_pinned::pinning::where_allowed});
}
void check(bool works) {
  if (!works) std::abort();
}

struct tessera_stitched {
  tessera_stitched() { std::memset(block, 1, bytes); }
  void sleep_and_wake() {
    auto mode = pool.get<extension::sleep_mode>();
    check(static_cast<bool>(mode.sleep(extension::sleep_contents::save)));
    check(static_cast<bool>(mode.wake()));
  }
  caching_allocator<recipe::stitched, provider::host_pinned, extension::sleep_mode> pool{memory()};
  void* block = pool.allocate(bytes);
};

struct by_hand {
  by_hand() {
    check(block != nullptr);
    give();
    std::memset(block, 1, bytes);
  }
  ~by_hand() { take(); }
  void give() {
    check(device.create(bytes, page_kind::normal, physical) && device.map(block, bytes, physical));
    if constexpr (!provider::host_pinned::map_grants_access) check(device.grant(block, bytes));
  }
  void take() { check(device.unmap(block, bytes) && device.destroy(physical)); }
  void sleep_and_wake() {
    const auto saved = std::make_unique_for_overwrite<std::byte[]>(bytes);
    std::memcpy(saved.get(), block, bytes);
    take();
    give();
    std::memcpy(block, saved.get(), bytes);
  }
  provider::host_pinned device = memory();
  provider::host_pinned::physical physical{};
  void* block = device.reserve(bytes, 2_MiB);
};

struct host_heap {
  host_heap() { std::memset(block.get(), 1, bytes); }
  void sleep_and_wake() {
    const auto saved = std::make_unique_for_overwrite<std::byte[]>(bytes);
    std::memcpy(saved.get(), block.get(), bytes);
    block.reset();
    block = std::make_unique_for_overwrite<std::byte[]>(bytes);
    std::memcpy(block.get(), saved.get(), bytes);
  }
  std::unique_ptr<std::byte[]> block = std::make_unique_for_overwrite<std::byte[]>(bytes);
};

template <typename Subject>
void sleep_and_wake(benchmark::State& state) {
  Subject subject;
  subject.sleep_and_wake();  // the system has its first pages then
  for (auto _ : state) subject.sleep_and_wake();
}
BENCHMARK(sleep_and_wake<tessera_stitched>)->UseRealTime()->Iterations(3);
BENCHMARK(sleep_and_wake<by_hand>)->UseRealTime()->Iterations(3);
BENCHMARK(sleep_and_wake<host_heap>)->UseRealTime()->Iterations(3);

}  // namespace

BENCHMARK_MAIN();
