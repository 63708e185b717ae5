// SPDX-License-Identifier: Apache-2.0
// The time of an allocation and its free by a plan, beside the same pair of the allocator inside.

#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <variant>

#include <tessera/plan/planned.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>
#include <tessera/trace/csv.hpp>
#include <tessera/trace/recording.hpp>

#include "recorded.hpp"
#include "subjects.hpp"
#include "tessera_replay/planner/make_plan.hpp"

namespace {

using namespace tessera::literals;
using bench::event;
using bench::recording;

using pytorch = tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device>;
using stitched = tessera::caching_allocator<tessera::recipe::stitched, tessera::provider::simulated_device>;

/// Allocators that follow the plan of a recording, and those that do not.
template <typename Allocator>
struct subject {
  explicit subject(const recording&) {}
  Allocator pool{tessera::provider::simulated_device()};
  [[nodiscard]] double planned() const { return 0; }
};
template <typename Allocator>
struct subject<tessera::plan::planned<Allocator>> {
  explicit subject(const recording& run) : made(tessera::plan::make(run, {.effort = 1})) {}
  tessera::plan::made_plan made;
  tessera::plan::planned<Allocator> pool{made.view(), tessera::provider::simulated_device()};
  /// The share of the requests that the plan served.
  [[nodiscard]] double planned() const {
    const tessera::plan::plan_usage used = pool.statistics().by_plan;
    return static_cast<double>(used.requests) / static_cast<double>(used.requests + used.unplanned_requests);
  }
};

/// Steps of many pairs, so that the beginning of a step counts little, as in a program.
recording pairs(std::size_t bytes) {
  recording run{"pairs", {}};
  std::uint64_t id = 0;
  for (int step = 0; step < 3; ++step) {
    run.events.push_back({event::kind::begin_step});
    for (int i = 0; i < 1000; ++i, ++id) {
      run.events.push_back({event::kind::allocate, id, bytes});
      run.events.push_back({event::kind::free, id});
    }
  }
  return run;
}

template <typename Allocator>
void hit_pair(benchmark::State& state) {
  subject<Allocator> of(pairs(static_cast<std::size_t>(state.range(0))));
  bench::run_hot_pairs(state, of.pool);
  state.counters["planned"] = of.planned();
}

BENCHMARK(hit_pair<pytorch>)->Arg(1_KiB)->Arg(5_MiB);
BENCHMARK(hit_pair<tessera::plan::planned<pytorch>>)->Arg(1_KiB)->Arg(5_MiB);
BENCHMARK(hit_pair<stitched>)->Arg(1_KiB)->Arg(5_MiB);
BENCHMARK(hit_pair<tessera::plan::planned<stitched>>)->Arg(1_KiB)->Arg(5_MiB);

/// A recorded program. A pair is two of its operations.
template <typename Allocator>
void recorded_pair(benchmark::State& state, const recording& run) {
  const tessera::trace::program program(run);
  subject<Allocator> of(run);
  (void)tessera::trace::replay(program, of.pool);  // gets the memory
  for (auto _ : state) benchmark::DoNotOptimize(tessera::trace::replay(program, of.pool));
  const auto pairs = static_cast<double>(program.events().size()) / 2;
  state.counters["ns_per_pair"] = benchmark::Counter(
      pairs * 1e-9, benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
  state.counters["planned"] = of.planned();
}

template <typename Allocator>
void add(const char* allocator, const std::string& title, const std::shared_ptr<const recording>& run) {
  const std::string name = std::string("recorded_pair<") + allocator + ">/" + title;
  benchmark::RegisterBenchmark(name.c_str(), [run](benchmark::State& state) {
    recorded_pair<Allocator>(state, *run);
  })->Unit(benchmark::kMillisecond);
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  for (const char* const title : {"gpt2_adamw", "resnet50_sgd"}) {
    auto read_in = bench::read(std::string(TESSERA_EXAMPLES_DIR "/traces/") + title + ".csv");
    if (const auto* wrong = std::get_if<tessera::trace::input_error>(&read_in)) {
      std::fprintf(stderr, "%s\n", wrong->text().c_str());
      return 1;
    }
    const auto run = std::make_shared<const recording>(std::get<recording>(std::move(read_in)));
    add<pytorch>("pytorch", title, run);
    add<tessera::plan::planned<pytorch>>("tessera::planned<pytorch>", title, run);
    add<stitched>("stitched", title, run);
    add<tessera::plan::planned<stitched>>("tessera::planned<stitched>", title, run);
  }
  benchmark::RunSpecifiedBenchmarks();
}
