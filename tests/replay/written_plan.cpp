// SPDX-License-Identifier: Apache-2.0
// Runs a trace over the plan that the tool wrote as a header. The plan must be the one in a CSV file. Prints the
// peak of reserved bytes. With one argument, writes a header of a large plan there instead.
#include "written.hpp"

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>
#include <variant>

#include <tessera/plan/check_plan.hpp>
#include <tessera/plan/planned.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>
#include <tessera/trace/recording.hpp>
#include "tessera_replay/lifetimes.hpp"
#include "tessera_replay/planner/plan_file.hpp"

namespace {

/// A plan of 100,000 entries, each with a death. It need not be a good plan.
std::string large_header() {
  tessera::plan::made_plan made;
  made.numbers.bytes = 512ull * 4000000000;
  for (std::uint32_t k = 0; k < 1000; ++k) made.kinds.push_back({512ull * (k + 1), 0, 0});
  for (std::uint32_t i = 0; i < 100000; ++i) {
    made.entries.push_back({i % 1000, i * 40000, 0, i});
    made.deaths.push_back(i);
  }
  made.tracks.push_back({0, 1000, 100000, 0});
  return tessera::plan::to_header(made.view(), "large", "A plan of 100,000 entries.");
}

}  // namespace

int main(int count, char** words) {
  if (count == 2) std::ofstream(words[1]) << large_header();
  if (count != 3) return count == 2 ? 0 : 2;
  const auto csv = replay::read_file(words[2]);
  if (tessera::plan::to_csv(PLAN) != std::get<std::string>(csv)) return 3;
  const auto text = replay::read_file(words[1]);
  const auto read = replay::read_text_trace(std::get<std::string>(text), words[1]);
  const tessera::trace::program program(std::get<tessera::trace::recording>(read));
  tessera::plan::planned<
      tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device>>
      pool{PLAN};
  if (pool.statistics().by_plan.fault != nullptr) return 4;
  if (tessera::trace::replay(program, pool) != 0) return 5;
  std::printf("peak reserved %zu\n", pool.provider().peak_used());
}
