// expect first: per_stream_has_no_checkpoints
// SPDX-License-Identifier: Apache-2.0
#include <tessera/concurrent/per_stream.hpp>
#include <tessera/debug/tagged.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

int main() {
  tessera::tagged<tessera::per_stream<tessera::pytorch<>, tessera::simulated_device>> memory;
  (void)memory.restore_pool(memory.checkpoint_pool({}));
}
