// SPDX-License-Identifier: Apache-2.0
// Plans: the first run of a program is recorded. The second run gets places that were computed from the recording.
#include <tessera/plan/planned.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>
#include <tessera/trace/captured.hpp>
#include <tessera/trace/csv.hpp>

#include <cstdio>
#include <fstream>
#include <vector>

#include "tessera_replay/planner/make_plan.hpp"

using namespace tessera::literals;

namespace {

using allocator_type =
    tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device>;

/// Trains a small network. Each step allocates activations forward, and frees them backward.
template <typename Allocator>
void train(Allocator& allocator) {
  const std::size_t layers[] = {30_MiB, 7_MiB, 21_MiB, 3_MiB, 44_MiB};
  std::vector<void*> weights;
  for (const std::size_t bytes : layers) weights.push_back(allocator.allocate(bytes / 2));
  for (int step = 0; step < 10; ++step) {
    allocator.begin_step();
    std::vector<void*> activations;
    for (const std::size_t bytes : layers) activations.push_back(allocator.allocate(bytes));
    for (; !activations.empty(); activations.pop_back()) {
      void* const gradient = allocator.allocate(layers[activations.size() - 1] + 1_MiB);
      allocator.deallocate(activations.back());
      allocator.deallocate(gradient);
    }
  }
  for (void* const w : weights) allocator.deallocate(w);
}

}  // namespace

int main(int count, char** arguments) {
  tessera::trace::captured<allocator_type> first;
  train(first);
  const tessera::trace::recording program = first.recorded("program");
  if (count > 1) std::ofstream(arguments[1]) << tessera::trace::to_csv(program);  // for tessera-replay plan

  const tessera::plan::made_plan made = tessera::plan::make(program, {.effort = 1});
  tessera::plan::planned<allocator_type> second(made.view());
  train(second);
  const tessera::plan::plan_usage used = second.statistics().by_plan;
  std::printf("peak live %zu MiB, plan %zu MiB, pytorch reserved %zu MiB\n", made.numbers.peak_live >> 20,
              used.plan_bytes >> 20, first.current_usage().reserved >> 20);
  std::printf("%ju requests by plan, %ju others\n", std::uintmax_t{used.requests},
              std::uintmax_t{used.unplanned_requests});
  return used.unplanned_requests == 0 && second.audit() == nullptr ? 0 : 1;
}
