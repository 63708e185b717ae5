// expect first: sleep_needs_a_recipe_that_maps_memory_into_ranges
// SPDX-License-Identifier: Apache-2.0
#include <tessera/concurrent/locked.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

int main() {
  tessera::locked<tessera::pytorch<>, tessera::simulated_device> memory;
  (void)memory.sleep(tessera::sleep_contents::save);
}
