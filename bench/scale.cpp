// SPDX-License-Identifier: Apache-2.0
// How does the cost of a pair grow with live blocks, with cached fragments and with streams?
//
// Among many blocks a pair also waits for memory, as their descriptions fall out of the cache. Two things tell that from
// the algorithm: `memory_alone`, which looks one description up at random and does nothing with it, and the `warm`
// benchmarks, in which a few blocks come and go in a few sizes, so that what they touch stays in the cache however much
// else there is.

#include <benchmark/benchmark.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <typeinfo>
#include <utility>
#include <vector>

#include "dice.hpp"
#include "subjects.hpp"

namespace {

using bench::dice;

/// A few sizes in turn: few enough that the way to the blocks that fit them stays in the first cache.
class few_sizes {
 public:
  explicit few_sizes(dice& random) {
    for (std::size_t& bytes : sizes_) bytes = random.bytes();
  }
  std::size_t bytes() { return sizes_[turn_++ % sizes_.size()]; }

 private:
  std::array<std::size_t, 8> sizes_;
  std::size_t turn_ = 0;
};

/// Blocks of mixed sizes, dealt to the streams in turn.
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

  /// Frees the `which`-th block of a stream and allocates another.
  void replace(std::size_t which, std::size_t stream, std::size_t bytes) {
    void*& p = blocks[which * stream_count + stream];
    subject.pool.deallocate(p);
    p = subject.pool.try_allocate(bytes, tessera::stream_id{stream});
  }

  Subject subject;
  dice random;
  few_sizes few{random};
  std::vector<void*> blocks;
  std::size_t stream_count;
};

/// Cached fragments, each between two live blocks, and a few blocks that come and go.
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
  dice random;
  few_sizes few{random};
  std::vector<void*> kept;
  std::array<void*, 32> passing{};
  std::size_t oldest = 0;
};

/// As many descriptions as there could be blocks, found through a table in random order.
struct descriptions {
  explicit descriptions(std::size_t count, std::size_t /*streams*/) : all(count), table(count) {
    for (std::size_t i = 0; i < count; ++i) table[i] = &all[i];
    for (std::size_t i = count; i-- > 1;) std::swap(table[i], table[random.below(i + 1)]);
  }
  struct alignas(64) description {
    std::uint64_t visits = 0;
  };
  dice random;
  std::vector<description> all;
  std::vector<description*> table;
};

/// What a benchmark measures on. Its repetitions share it, as it takes long to build; the next benchmark ends it.
std::shared_ptr<void> rig;
std::string rig_name;

template <typename Rig>
Rig& rig_for(std::size_t count, std::size_t streams = 1) {
  const std::string name = typeid(Rig).name() + (' ' + std::to_string(count)) + ' ' + std::to_string(streams);
  if (name != rig_name) {
    rig.reset();
    rig = std::make_shared<Rig>(count, streams);
    rig_name = name;
  }
  return *static_cast<Rig*>(rig.get());
}

std::size_t argument(const benchmark::State& state) { return static_cast<std::size_t>(state.range(0)); }

template <typename Subject>
void live(benchmark::State& state) {
  auto& among = rig_for<live_blocks<Subject>>(argument(state));
  auto& random = among.random;
  for (auto _ : state) among.replace(random.below(among.blocks.size()), 0, random.bytes());
}
template <typename Subject>
void live_warm(benchmark::State& state) {
  auto& among = rig_for<live_blocks<Subject>>(argument(state));
  for (auto _ : state) among.replace(among.random.below(100), 0, among.few.bytes());
}

template <typename Subject>
void cached(benchmark::State& state) {
  auto& among = rig_for<fragments<Subject>>(argument(state));
  for (auto _ : state) among.replace_oldest(among.random.bytes());
}
template <typename Subject>
void cached_warm(benchmark::State& state) {
  auto& among = rig_for<fragments<Subject>>(argument(state));
  for (auto _ : state) among.replace_oldest(among.few.bytes());
}

/// In round robin, over ten thousand live blocks in all.
template <typename Subject>
void streams(benchmark::State& state) {
  auto& among = rig_for<live_blocks<Subject>>(10240, argument(state));
  auto& random = among.random;
  const std::size_t share = among.blocks.size() / among.stream_count;
  std::size_t turn = 0;
  for (auto _ : state) among.replace(random.below(share), turn++ % among.stream_count, random.bytes());
}

/// Each look-up has to wait for the one before, as the steps of an allocator do.
void memory_alone(benchmark::State& state) {
  auto& among = rig_for<descriptions>(argument(state));
  std::uint64_t visits = 0;
  for (auto _ : state) visits = among.table[among.random.below(among.table.size() - (visits & 1))]->visits++;
  benchmark::DoNotOptimize(visits);
}

void counts(benchmark::internal::Benchmark* b) {
  b->RangeMultiplier(10)->Range(100, 1'000'000)->Iterations(1 << 18);
}
/// The host heap takes a page of real memory for most blocks, and looks through its fragments one by one.
void fewer_counts(benchmark::internal::Benchmark* b) {
  b->RangeMultiplier(10)->Range(100, 10'000)->Iterations(1 << 14);
}
void stream_counts(benchmark::internal::Benchmark* b) {
  b->RangeMultiplier(4)->Range(1, 256)->Iterations(1 << 18);
}

BENCHMARK(memory_alone)->Apply(counts);
BENCHMARK(live<bench::tessera_pytorch>)->Apply(counts);
BENCHMARK(live<bench::textbook_engine>)->Apply(counts);
BENCHMARK(live<bench::host_heap>)->Apply(fewer_counts);
BENCHMARK(live_warm<bench::tessera_pytorch>)->Apply(counts);
BENCHMARK(live_warm<bench::textbook_engine>)->Apply(counts);
BENCHMARK(cached<bench::tessera_pytorch>)->Apply(counts);
BENCHMARK(cached<bench::textbook_engine>)->Apply(counts);
BENCHMARK(cached<bench::host_heap>)->Apply(fewer_counts);
BENCHMARK(cached_warm<bench::tessera_pytorch>)->Apply(counts);
BENCHMARK(cached_warm<bench::textbook_engine>)->Apply(counts);
BENCHMARK(streams<bench::tessera_pytorch>)->Apply(stream_counts);
BENCHMARK(streams<bench::textbook_engine>)->Apply(stream_counts);

}  // namespace

BENCHMARK_MAIN();
