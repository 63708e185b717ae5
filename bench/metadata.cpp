// SPDX-License-Identifier: Apache-2.0
// Host memory for the descriptions of blocks, and requests to the host heap for each hit.
//
// The numbers of `metadata` are counts. Every request to the host heap counts, except those of the simulated device.
// `resident` shows how much physical memory the process takes for each live block. This includes the pages that the host
// heap keeps, and leaves out pages that nothing has touched yet.

#include <benchmark/benchmark.h>
#include <malloc.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <utility>
#include <vector>

#include <tessera/block_handle.hpp>
#include <tessera/core/types.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

#include "subjects.hpp"
#include "xorshift.hpp"

namespace {

struct {
  bool paused = false;
  std::int64_t requests = 0;
  std::int64_t bytes = 0;  // includes the word that the heap keeps before each block
} host;

void* counted(void* p) {
  if (p == nullptr) std::abort();
  if (!host.paused) {
    ++host.requests;
    host.bytes += static_cast<std::int64_t>(malloc_usable_size(p) + sizeof(std::size_t));
  }
  return p;
}
[[gnu::noinline]] void uncounted(void* p) {  // inlined, g++ would warn that free() takes what new returned
  if (p != nullptr && !host.paused)
    host.bytes -= static_cast<std::int64_t>(malloc_usable_size(p) + sizeof(std::size_t));
  std::free(p);
}

/// A simulated device that serves every request. Its own host memory is not counted.
class uncounted_device : public tessera::provider::simulated_device {
 public:
  uncounted_device() : simulated_device(after_pausing({.capacity = tessera::max_request})) {
    host.paused = false;
  }
  void* acquire(std::size_t bytes, tessera::page_kind kind = tessera::page_kind::normal) noexcept {
    host.paused = true;
    void* const segment = simulated_device::acquire(bytes, kind);
    host.paused = false;
    return segment;
  }
  bool release(void* p, std::size_t bytes) noexcept {
    host.paused = true;
    const bool released = simulated_device::release(p, bytes);
    host.paused = false;
    return released;
  }

 private:
  static const options& after_pausing(const options& settings) {
    host.paused = true;
    return settings;
  }
};

struct tessera_pytorch {
  tessera::caching_allocator<tessera::recipe::pytorch<>, uncounted_device> pool;
};
struct reference {
  bench::reference_implementation<uncounted_device> pool{uncounted_device{}};
};

template <typename Subject>
void metadata(benchmark::State& state) {
  const auto count = static_cast<std::size_t>(state.range(0));
  std::vector<void*> blocks(count);
  bench::xorshift random;
  const std::int64_t at_first = host.bytes;
  Subject subject;
  auto& pool = subject.pool;
  const auto held = [&] { return static_cast<double>(host.bytes - at_first); };
  const auto note = [&](const char* name, double value) {
    host.paused = true;
    state.counters[name] = value;
    host.paused = false;
  };
  const auto note_share_of = [&](const char* name, std::int64_t described) {
    note(name, held() / static_cast<double>(described));
  };
  const auto live = [&] { return pool.statistics().all.active.current; };
  const auto replace_one = [&] {
    void*& p = blocks[random.below(count)];
    pool.deallocate(p);
    p = pool.try_allocate(random.bytes());
  };

  for (auto _ : state) {
    for (void*& p : blocks) p = pool.try_allocate(random.bytes());
    note_share_of("per_live", live());

    for (std::size_t i = 0; i < count; ++i) replace_one();
    std::int64_t hits = 0;
    std::int64_t requests = 0;
    for (std::size_t i = 0; i < 100'000; ++i) {
      const std::uint64_t misses_before = pool.provider().calls().acquire;
      const std::int64_t requests_before = host.requests;
      replace_one();
      if (pool.provider().calls().acquire != misses_before) continue;
      ++hits;
      requests += host.requests - requests_before;
    }
    note("requests_per_hit", static_cast<double>(requests) / static_cast<double>(hits));
    note_share_of("per_live_after_use", live());

    for (std::size_t i = 0; i < count; i += 2) pool.deallocate(std::exchange(blocks[i], nullptr));
    note_share_of("per_block_half_free", live() + pool.statistics().all.inactive_split.current);
    if constexpr (requires { pool.metadata_bytes(); })
      note("footprint_of_counted", static_cast<double>(pool.metadata_bytes()) / held());

    const double before = held();
    for (std::size_t i = 0; i < count; ++i) {
      if (i % 100 != 1) pool.deallocate(std::exchange(blocks[i], nullptr));
    }
    note("kept_with_1_of_100", held() / before);
    pool.trim();
    note("kept_after_trim", held() / before);
    note_share_of("per_live_after_trim", live());
    for (void*& p : blocks) pool.deallocate(std::exchange(p, nullptr));
    pool.trim();
    note("bytes_when_empty", held());
  }
}

struct host_heap {};

/// The bytes that malloc takes beyond the request, for its own word and for rounding.
template <>
void metadata<host_heap>(benchmark::State& state) {
  const auto count = static_cast<std::size_t>(state.range(0));
  std::vector<void*> blocks(count);
  bench::xorshift random;
  for (auto _ : state) {
    std::size_t beyond = 0;
    for (void*& p : blocks) {
      const std::size_t bytes = random.bytes();
      p = std::malloc(bytes);
      beyond += malloc_usable_size(p) + sizeof(std::size_t) - bytes;
    }
    state.counters["per_live"] = static_cast<double>(beyond) / static_cast<double>(count);
    for (void* p : blocks) std::free(p);
  }
}

struct by_handle {
  bench::handles_of<tessera::caching_allocator<tessera::recipe::pytorch<>, uncounted_device>> pool;
};

/// Returns the bytes of physical memory of this process, or 0 if the system does not tell.
double resident_bytes() {
  long pages = 0;
  if (std::FILE* const statm = std::fopen("/proc/self/statm", "r"); statm != nullptr) {
    if (std::fscanf(statm, "%*d %ld", &pages) != 1) pages = 0;
    std::fclose(statm);
  }
  return static_cast<double>(pages) * static_cast<double>(sysconf(_SC_PAGESIZE));
}

/// The blocks are so small that the device has few segments. Its own host memory is then less than a byte for each block.
template <typename Subject>
void resident(benchmark::State& state) {
  const auto count = static_cast<std::size_t>(state.range(0));
  using block = decltype(std::declval<Subject&>().pool.try_allocate(1));
  std::vector<block> blocks(count);  // writes to all its pages
  for (auto _ : state) {
    malloc_trim(0);  // otherwise the heap might have pages that an earlier benchmark left
    const double before = resident_bytes();
    Subject subject;
    for (block& b : blocks) b = subject.pool.try_allocate(512);
    const double after = resident_bytes();
    state.counters["resident_per_live"] = (after - before) / static_cast<double>(count);
    if constexpr (requires { subject.pool.metadata_bytes(); })
      state.counters["footprint_per_live"] =
          static_cast<double>(subject.pool.metadata_bytes()) / static_cast<double>(count);
    for (block& b : blocks) subject.pool.deallocate(b);
  }
}

void counts(benchmark::internal::Benchmark* b) {
  b->RangeMultiplier(10)->Range(100, 1'000'000)->Iterations(1)->Repetitions(1);
}
// First, because the others leave a host heap that is large and in pieces.
BENCHMARK(resident<tessera_pytorch>)->Arg(1'000'000)->Iterations(1)->Repetitions(1);
BENCHMARK(resident<by_handle>)->Arg(1'000'000)->Iterations(1)->Repetitions(1);
BENCHMARK(resident<reference>)->Arg(1'000'000)->Iterations(1)->Repetitions(1);
BENCHMARK(metadata<tessera_pytorch>)->Apply(counts);
BENCHMARK(metadata<reference>)->Apply(counts);
BENCHMARK(metadata<host_heap>)->Arg(100)->Arg(1'000)->Arg(10'000)->Iterations(1)->Repetitions(1);

}  // namespace

void* operator new(std::size_t bytes) { return counted(std::malloc(bytes)); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return counted(std::aligned_alloc(static_cast<std::size_t>(alignment), bytes));
}
void operator delete(void* p) noexcept { uncounted(p); }
void operator delete(void* p, std::size_t) noexcept { uncounted(p); }
void operator delete(void* p, std::align_val_t) noexcept { uncounted(p); }
void operator delete(void* p, std::size_t, std::align_val_t) noexcept { uncounted(p); }

BENCHMARK_MAIN();
