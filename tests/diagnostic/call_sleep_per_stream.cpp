// expect first: an_arena_has_only_a_part_of_the_memory_so_use_locked_for_this_extension
// SPDX-License-Identifier: Apache-2.0
#include <tessera/concurrent/per_stream.hpp>
#include <tessera/debug/tagged.hpp>
#include <tessera/extension/sleep_mode.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

int main() {
  using tessera::extension::sleep_mode;
  using pool =
      tessera::caching_allocator<tessera::recipe::stitched, tessera::provider::simulated_device, sleep_mode>;
  tessera::debug::tagged<tessera::concurrent::per_stream<pool>> memory;
  (void)memory.get<sleep_mode>().sleep(tessera::extension::sleep_contents::save);
}
