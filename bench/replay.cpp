// SPDX-License-Identifier: Apache-2.0
// The time of an operation of the recorded programs in examples/traces.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <variant>
#include <vector>

#include <tessera/trace/csv.hpp>
#include <tessera/trace/recording.hpp>

#include "recorded.hpp"
#include "subjects.hpp"

namespace {

using tessera::trace::recording;

template <typename Subject>
void run_replay(benchmark::State& state, const recording& run) {
  const tessera::trace::program program(run);
  Subject subject;
  for (auto _ : state) benchmark::DoNotOptimize(tessera::trace::replay(program, subject.pool));
  const auto operations = static_cast<double>(program.events().size());
  state.counters["ns_per_operation"] = benchmark::Counter(
      operations * 1e-9, benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}

template <typename Subject>
void add(const char* subject, const std::string& title, const std::shared_ptr<const recording>& run) {
  const std::string name = std::string("replay<bench::") + subject + ">/" + title;
  benchmark::RegisterBenchmark(name.c_str(), [run](benchmark::State& state) {
    run_replay<Subject>(state, *run);
  })->Unit(benchmark::kMillisecond);
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  std::error_code unreadable;
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(TESSERA_EXAMPLES_DIR "/traces", unreadable)) {
    if (entry.path().extension() == ".csv") paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  for (const auto& path : paths) {
    auto read_in = bench::read(path.string());
    if (const auto* wrong = std::get_if<tessera::trace::input_error>(&read_in)) {
      std::fprintf(stderr, "%s\n", wrong->text().c_str());
      return 1;
    }
    const auto run = std::make_shared<const recording>(std::get<recording>(std::move(read_in)));
    const std::string title = path.stem().string();
    add<bench::tessera_pytorch>("tessera_pytorch", title, run);
    add<bench::reference>("reference", title, run);
    add<bench::tessera_locked>("tessera_locked", title, run);
    add<bench::reference_with_mutex>("reference_with_mutex", title, run);
    add<bench::host_heap>("host_heap", title, run);
  }
  if (paths.empty()) {
    std::fprintf(stderr, "no recorded programs in %s\n", TESSERA_EXAMPLES_DIR "/traces");
    return 1;
  }
  benchmark::RunSpecifiedBenchmarks();
}
