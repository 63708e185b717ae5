// expect first: per_stream_has_no_sleep
// SPDX-License-Identifier: Apache-2.0
#include <tessera/concurrent/per_stream.hpp>
#include <tessera/debug/tagged.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

int main() {
  tessera::tagged<tessera::per_stream<tessera::stitched, tessera::simulated_device>> memory;
  (void)memory.sleep(tessera::sleep_contents::save);
}
