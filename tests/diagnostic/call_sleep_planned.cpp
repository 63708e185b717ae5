// expect first: sleep_needs_an_allocator_without_a_plan
// SPDX-License-Identifier: Apache-2.0
#include <tessera/debug/tagged.hpp>
#include <tessera/extension/sleep_mode.hpp>
#include <tessera/plan/planned.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

int main() {
  using tessera::extension::sleep_mode;
  using planned = tessera::plan::planned<
      tessera::caching_allocator<tessera::recipe::stitched, tessera::provider::simulated_device, sleep_mode>>;
  tessera::debug::tagged<planned> memory(tessera::plan::memory_plan{});
  (void)memory.get<sleep_mode>().sleep(tessera::extension::sleep_contents::discard);
}
