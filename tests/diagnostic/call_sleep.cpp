// expect first: sleep_needs_a_recipe_that_maps_memory_into_ranges
// SPDX-License-Identifier: Apache-2.0
#include <tessera/concurrent/locked.hpp>
#include <tessera/extension/sleep_mode.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

int main() {
  using tessera::extension::sleep_mode;
  tessera::concurrent::locked<
      tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device, sleep_mode>>
      memory;
  (void)memory.get<sleep_mode>().sleep(tessera::extension::sleep_contents::save);
}
