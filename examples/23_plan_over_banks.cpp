// SPDX-License-Identifier: Apache-2.0
// A plan over two memories of a device. Fast memory is too small for the program, so a part of it lies in slow memory.
#include <tessera/plan/planned.hpp>
#include <tessera/provider/memory_domains.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>
#include <tessera/trace/captured.hpp>

#include <cstdio>
#include <utility>
#include <vector>

#include "tessera_replay/planner/make_plan.hpp"

using namespace tessera::literals;

namespace {

using tessera::provider::simulated_device;
using domains = tessera::provider::memory_domains<simulated_device, tessera::provider::spill_banks>;

/// Trains a network of ten layers. Each step keeps the activations until the backward pass has used them.
template <typename Allocator>
void train(Allocator& allocator) {
  std::vector<void*> weights;
  for (int layer = 0; layer < 10; ++layer) weights.push_back(allocator.allocate(12_MiB));
  for (int step = 0; step < 10; ++step) {
    allocator.begin_step();
    std::vector<void*> activations;
    for (int layer = 0; layer < 10; ++layer) {
      void* const workspace = allocator.allocate(9_MiB);
      activations.push_back(allocator.allocate(20_MiB));
      allocator.deallocate(workspace);
    }
    for (; !activations.empty(); activations.pop_back()) allocator.deallocate(activations.back());
  }
  for (void* const w : weights) allocator.deallocate(w);
}

}  // namespace

int main() {
  tessera::trace::captured<tessera::caching_allocator<tessera::recipe::pytorch<>, simulated_device>> first;
  train(first);

  const std::size_t capacities[] = {200_MiB, 1_GiB};
  const tessera::plan::made_plan made =
      tessera::plan::make(first.recorded("program"), {.effort = 1, .banks = capacities});
  if (!made.fits(capacities)) return 1;

  std::vector<domains::bank> banks;
  banks.push_back({simulated_device({.capacity = capacities[0]}), "hbm"});
  banks.push_back({banks[0].provider.another_bank({.capacity = capacities[1]}), "ddr"});
  tessera::plan::planned<tessera::caching_allocator<tessera::recipe::pytorch<>, domains>> second(
      made.view(), domains(std::move(banks)));
  train(second);

  std::printf("peak live %zu MiB, at least %zu MiB outside hbm\n", made.numbers.peak_live >> 20,
              made.outside_bound >> 20);
  for (std::size_t bank = 0; bank < second.provider().count(); ++bank)
    std::printf("%s: %zu MiB\n", second.provider().name(bank),
                second.provider().statistics(bank).peak_held >> 20);
  const tessera::plan::plan_usage used = second.statistics().by_plan;
  std::printf("%ju requests by plan, %ju others\n", std::uintmax_t{used.requests},
              std::uintmax_t{used.unplanned_requests});
  return used.unplanned_requests == 0 && second.audit() == nullptr ? 0 : 1;
}
