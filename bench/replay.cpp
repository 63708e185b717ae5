// SPDX-License-Identifier: Apache-2.0
// The time of an operation of the recorded programs in examples/traces.

#include <benchmark/benchmark.h>

#include <string>

#include "replayed.hpp"
#include "subjects.hpp"

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  const auto add = [](const std::string& title, const bench::shared_recording& run) {
    bench::add_replay<bench::tessera_pytorch>("replay<bench::tessera_pytorch>", title, run);
    bench::add_replay<bench::reference>("replay<bench::reference>", title, run);
    bench::add_replay<bench::tessera_locked>("replay<bench::tessera_locked>", title, run);
    bench::add_replay<bench::reference_with_mutex>("replay<bench::reference_with_mutex>", title, run);
    bench::add_replay<bench::host_heap>("replay<bench::host_heap>", title, run);
  };
  if (!bench::for_each_recording(add)) return 1;
  benchmark::RunSpecifiedBenchmarks();
}
