// expect first: any_allocator_forwards_no_checkpoints
// SPDX-License-Identifier: Apache-2.0
#include <tessera/any_allocator.hpp>
#include <tessera/private_pool.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

int main() {
  tessera::caching_allocator<tessera::pytorch<>, tessera::simulated_device> memory;
  tessera::any_allocator any(memory);
  tessera::private_pool pool(any);
  (void)pool.checkpoint();
}
