// expect: would_fit does not know which requests the plan of
// SPDX-License-Identifier: Apache-2.0
#include <tessera/observe/would_fit.hpp>
#include <tessera/plan/planned.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

int main() {
  tessera::plan::planned<
      tessera::caching_allocator<tessera::recipe::stitched, tessera::provider::simulated_device>>
      memory(tessera::plan::memory_plan{});
  (void)tessera::observe::would_fit(memory, {{1024}});
}
