// expect first: per_stream_has_no_checkpoints
// SPDX-License-Identifier: Apache-2.0
#include <tessera/concurrent/per_stream.hpp>
#include <tessera/private_pool.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

int main() {
  tessera::per_stream<tessera::pytorch<>, tessera::simulated_device> memory;
  tessera::private_pool pool(memory);
  (void)pool.checkpoint();
}
