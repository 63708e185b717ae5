// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <benchmark/benchmark.h>

#include <algorithm>
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

/// Replays the recorded programs in examples/traces.
namespace bench {

using shared_recording = std::shared_ptr<const recording>;

/// Measures the time of an operation of a recorded program. A first replay gets the memory from the device.
template <typename Subject>
void run_replay(benchmark::State& state, const recording& run) {
  const tessera::trace::program program(run);
  Subject subject;
  if (tessera::trace::replay(program, subject.pool) != 0) return state.SkipWithError("out of memory");
  for (auto _ : state) benchmark::DoNotOptimize(tessera::trace::replay(program, subject.pool));
  const auto operations = static_cast<double>(program.events().size());
  state.counters["ns_per_operation"] = benchmark::Counter(
      operations * 1e-9, benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}

/// Registers a benchmark `name`/`title`.
template <typename Subject>
void add_replay(const std::string& name, const std::string& title, const shared_recording& run) {
  benchmark::RegisterBenchmark((name + "/" + title).c_str(), [run](benchmark::State& state) {
    run_replay<Subject>(state, *run);
  })->Unit(benchmark::kMillisecond);
}

/// Calls `add(title, recording)` for each recorded program. Returns false, and prints why, if there are none.
template <typename F>
bool for_each_recording(F add) {
  std::error_code unreadable;
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(TESSERA_EXAMPLES_DIR "/traces", unreadable)) {
    if (entry.path().extension() == ".csv") paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  for (const auto& path : paths) {
    auto read_in = read(path.string());
    if (const auto* wrong = std::get_if<tessera::trace::input_error>(&read_in)) {
      std::fprintf(stderr, "%s\n", wrong->text().c_str());
      return false;
    }
    add(path.stem().string(), std::make_shared<const recording>(std::get<recording>(std::move(read_in))));
  }
  if (paths.empty()) std::fprintf(stderr, "no recorded programs in %s\n", TESSERA_EXAMPLES_DIR "/traces");
  return !paths.empty();
}

/// Calls `add(title, recording)` for each file that the arguments name, or for each recorded program if they name none.
/// Returns false, and prints why, if a file is no recording.
template <typename F>
bool for_each_argument(int count, char** arguments, F add) {
  if (count == 1) return for_each_recording(add);
  for (int i = 1; i < count; ++i) {
    auto read_in = read(arguments[i]);
    if (const auto* wrong = std::get_if<tessera::trace::input_error>(&read_in)) {
      std::fprintf(stderr, "%s\n", wrong->text().c_str());
      return false;
    }
    add(std::filesystem::path(arguments[i]).stem().string(),
        std::make_shared<const recording>(std::get<recording>(std::move(read_in))));
  }
  return true;
}

}  // namespace bench
