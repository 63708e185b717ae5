// SPDX-License-Identifier: Apache-2.0
// What does an operation cost in a recorded training run?

#include <benchmark/benchmark.h>

#include <string>
#include <variant>

#include <tessera/trace/csv.hpp>
#include <tessera/trace/file.hpp>
#include <tessera/trace/program.hpp>

#include "subjects.hpp"

namespace {

const tessera::trace::recording* bundled() {
  static const auto loaded = []() -> std::variant<tessera::trace::recording, std::string> {
    const std::string path = TESSERA_EXAMPLES_DIR "/traces/gnn_sage.csv";
    const auto text = tessera::trace::read_file(path);
    if (const auto* wrong = std::get_if<tessera::trace::input_error>(&text)) return wrong->text();
    auto read = tessera::trace::read_csv(std::get<std::string>(text), path);
    if (const auto* wrong = std::get_if<tessera::trace::input_error>(&read)) return wrong->text();
    return std::get<tessera::trace::recording>(std::move(read));
  }();
  return std::get_if<tessera::trace::recording>(&loaded);
}

template <typename Subject>
void replay(benchmark::State& state) {
  if (bundled() == nullptr) {
    state.SkipWithError("the bundled trace cannot be read");
    return;
  }
  const tessera::trace::program program(*bundled());
  Subject subject;
  for (auto _ : state) benchmark::DoNotOptimize(tessera::trace::replay(program, subject.pool));
  const auto operations = static_cast<double>(program.events().size());
  state.counters["ns_per_operation"] = benchmark::Counter(
      operations * 1e-9, benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}

BENCHMARK(replay<bench::tessera_pytorch>)->Unit(benchmark::kMillisecond);
BENCHMARK(replay<bench::textbook_engine>)->Unit(benchmark::kMillisecond);
BENCHMARK(replay<bench::tessera_passthrough>)->Unit(benchmark::kMillisecond);
BENCHMARK(replay<bench::host_heap>)->Unit(benchmark::kMillisecond);

}  // namespace

BENCHMARK_MAIN();
