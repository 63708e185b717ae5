// SPDX-License-Identifier: Apache-2.0
// The time of a free and an allocation as the number of live blocks, of cached fragments and of streams grows.
//
// Among many blocks a pair also waits for host memory, because the block descriptions do not fit the processor's cache.
// Two benchmarks separate this from the algorithm. `memory_alone` only looks up one description at random. The `warm`
// benchmarks replace a few blocks of a few sizes, so that the descriptions that they touch stay in the cache.

#include <benchmark/benchmark.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <typeinfo>
#include <utility>
#include <vector>

#include "subjects.hpp"
#include "xorshift.hpp"

namespace {

using bench::xorshift;

/// Returns eight sizes in turn. The index entries of so few sizes stay in the first-level cache.
class few_sizes {
 public:
  explicit few_sizes(xorshift& random) {
    for (std::size_t& bytes : sizes_) bytes = random.bytes();
  }
  std::size_t bytes() { return sizes_[turn_++ % sizes_.size()]; }

 private:
  std::array<std::size_t, 8> sizes_;
  std::size_t turn_ = 0;
};

/// Live blocks of mixed sizes. Block `i` is on stream `i % streams`.
template <typename Subject>
struct live_blocks {
  live_blocks(std::size_t count, std::size_t streams) : blocks(count), stream_count(streams) {
    for (std::size_t i = 0; i < count; ++i)
      blocks[i] = subject.pool.try_allocate(random.bytes(), tessera::stream_id{i % streams});
    for (std::size_t i = 0; i < count; ++i)
      replace(random.below(count / streams), i % streams, random.bytes());
  }
  ~live_blocks() {
    for (void* p : blocks) subject.pool.deallocate(p);
  }
  live_blocks(const live_blocks&) = delete;
  live_blocks& operator=(const live_blocks&) = delete;

  /// Frees block `index` of a stream and allocates another.
  void replace(std::size_t index, std::size_t stream, std::size_t bytes) {
    void*& p = blocks[index * stream_count + stream];
    subject.pool.deallocate(p);
    p = subject.pool.try_allocate(bytes, tessera::stream_id{stream});
  }

  Subject subject;
  xorshift random;
  few_sizes few{random};
  std::vector<void*> blocks;
  std::size_t stream_count;
};

/// Cached fragments, each between two live blocks, and 32 blocks that are replaced in turn.
template <typename Subject>
struct fragments {
  fragments(std::size_t count, std::size_t /*streams*/) : kept(2 * count) {
    for (void*& p : kept) p = subject.pool.try_allocate(random.bytes());
    for (std::size_t i = 0; i < kept.size(); i += 2) subject.pool.deallocate(std::exchange(kept[i], nullptr));
    for (void*& p : passing) p = subject.pool.try_allocate(random.bytes());
  }
  ~fragments() {
    for (void* p : kept) subject.pool.deallocate(p);
    for (void* p : passing) subject.pool.deallocate(p);
  }
  fragments(const fragments&) = delete;
  fragments& operator=(const fragments&) = delete;

  void replace_oldest(std::size_t bytes) {
    void*& p = passing[oldest++ % passing.size()];
    subject.pool.deallocate(p);
    p = subject.pool.try_allocate(bytes);
  }

  Subject subject;
  xorshift random;
  few_sizes few{random};
  std::vector<void*> kept;
  std::array<void*, 32> passing{};
  std::size_t oldest = 0;
};

/// Block descriptions, which a table lists in random order.
struct descriptions {
  explicit descriptions(std::size_t count, std::size_t /*streams*/) : all(count), table(count) {
    for (std::size_t i = 0; i < count; ++i) table[i] = &all[i];
    for (std::size_t i = count; i-- > 1;) std::swap(table[i], table[random.below(i + 1)]);
  }
  struct alignas(64) description {
    std::uint64_t visits = 0;
  };
  xorshift random;
  std::vector<description> all;
  std::vector<description*> table;
};

/// The state that the repetitions of a benchmark share, as it takes long to build. The next benchmark replaces it.
std::shared_ptr<void> shared_fixture;
std::string fixture_name;

template <typename Fixture>
Fixture& fixture_for(std::size_t count, std::size_t streams = 1) {
  const std::string name =
      typeid(Fixture).name() + (' ' + std::to_string(count)) + ' ' + std::to_string(streams);
  if (name != fixture_name) {
    shared_fixture.reset();
    shared_fixture = std::make_shared<Fixture>(count, streams);
    fixture_name = name;
  }
  return *static_cast<Fixture*>(shared_fixture.get());
}

std::size_t argument(const benchmark::State& state) { return static_cast<std::size_t>(state.range(0)); }

template <typename Subject>
void live(benchmark::State& state) {
  auto& fixture = fixture_for<live_blocks<Subject>>(argument(state));
  auto& random = fixture.random;
  for (auto _ : state) fixture.replace(random.below(fixture.blocks.size()), 0, random.bytes());
}
template <typename Subject>
void live_warm(benchmark::State& state) {
  auto& fixture = fixture_for<live_blocks<Subject>>(argument(state));
  for (auto _ : state) fixture.replace(fixture.random.below(100), 0, fixture.few.bytes());
}

template <typename Subject>
void cached(benchmark::State& state) {
  auto& fixture = fixture_for<fragments<Subject>>(argument(state));
  for (auto _ : state) fixture.replace_oldest(fixture.random.bytes());
}
template <typename Subject>
void cached_warm(benchmark::State& state) {
  auto& fixture = fixture_for<fragments<Subject>>(argument(state));
  for (auto _ : state) fixture.replace_oldest(fixture.few.bytes());
}

/// Uses the streams in turn, with ten thousand live blocks in all.
template <typename Subject>
void streams(benchmark::State& state) {
  auto& fixture = fixture_for<live_blocks<Subject>>(10240, argument(state));
  auto& random = fixture.random;
  const std::size_t share = fixture.blocks.size() / fixture.stream_count;
  std::size_t turn = 0;
  for (auto _ : state) fixture.replace(random.below(share), turn++ % fixture.stream_count, random.bytes());
}

/// Each look-up depends on the one before, like the steps of an allocator.
void memory_alone(benchmark::State& state) {
  auto& fixture = fixture_for<descriptions>(argument(state));
  std::uint64_t visits = 0;
  for (auto _ : state)
    visits = fixture.table[fixture.random.below(fixture.table.size() - (visits & 1))]->visits++;
  benchmark::DoNotOptimize(visits);
}

void counts(benchmark::internal::Benchmark* b) {
  b->RangeMultiplier(10)->Range(100, 1'000'000)->Iterations(1 << 18);
}
/// malloc takes real memory for each block and searches its fragments one by one.
void fewer_counts(benchmark::internal::Benchmark* b) {
  b->RangeMultiplier(10)->Range(100, 10'000)->Iterations(1 << 14);
}
void stream_counts(benchmark::internal::Benchmark* b) {
  b->RangeMultiplier(4)->Range(1, 256)->Iterations(1 << 18);
}

BENCHMARK(memory_alone)->Apply(counts);
BENCHMARK(live<bench::tessera_pytorch>)->Apply(counts);
BENCHMARK(live<bench::reference>)->Apply(counts);
BENCHMARK(live<bench::host_heap>)->Apply(fewer_counts);
BENCHMARK(live_warm<bench::tessera_pytorch>)->Apply(counts);
BENCHMARK(live_warm<bench::reference>)->Apply(counts);
BENCHMARK(cached<bench::tessera_pytorch>)->Apply(counts);
BENCHMARK(cached<bench::reference>)->Apply(counts);
BENCHMARK(cached<bench::host_heap>)->Apply(fewer_counts);
BENCHMARK(cached_warm<bench::tessera_pytorch>)->Apply(counts);
BENCHMARK(cached_warm<bench::reference>)->Apply(counts);
BENCHMARK(streams<bench::tessera_pytorch>)->Apply(stream_counts);
BENCHMARK(streams<bench::reference>)->Apply(stream_counts);

}  // namespace

BENCHMARK_MAIN();
