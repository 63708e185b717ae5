// SPDX-License-Identifier: Apache-2.0
// Runs a trace over the plan that the tool wrote as a header. The plan must be the one in a CSV file. Prints the
// peak of reserved bytes.
#include "written.hpp"

#include <cstdio>
#include <string>
#include <variant>

#include <tessera/plan/check_plan.hpp>
#include <tessera/plan/plan_file.hpp>
#include <tessera/plan/planned.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/recipe/pytorch.hpp>
#include <tessera/trace/recording.hpp>
#include "tessera_replay/lifetimes.hpp"

int main(int count, char** words) {
  if (count != 3) return 2;
  const auto csv = replay::read_file(words[2]);
  if (tessera::plan::to_csv(PLAN) != std::get<std::string>(csv)) return 3;
  const auto text = replay::read_file(words[1]);
  const auto read = replay::read_text_trace(std::get<std::string>(text), words[1]);
  const tessera::trace::program program(std::get<tessera::trace::recording>(read));
  tessera::planned<tessera::caching_allocator<tessera::pytorch<>, tessera::simulated_device>> pool{PLAN};
  if (pool.statistics().by_plan.fault != nullptr) return 4;
  if (tessera::trace::replay(program, pool) != 0) return 5;
  std::printf("peak reserved %zu\n", pool.provider().peak_used());
}
