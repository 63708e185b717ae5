// expect first: sleep_needs_an_allocator_without_a_plan
// SPDX-License-Identifier: Apache-2.0
#include <tessera/debug/tagged.hpp>
#include <tessera/plan/planned.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

int main() {
  using planned = tessera::planned<tessera::caching_allocator<tessera::stitched, tessera::simulated_device>>;
  tessera::tagged<planned> memory(tessera::memory_plan{});
  (void)memory.sleep(tessera::sleep_contents::discard);
}
