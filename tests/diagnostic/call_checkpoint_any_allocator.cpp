// expect first: any_allocator_forwards_only_private_pools_and_sleep_mode
// SPDX-License-Identifier: Apache-2.0
#include <tessera/any_allocator.hpp>
#include <tessera/extension/checkpoints.hpp>
#include <tessera/extension/private_pools.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

int main() {
  using namespace tessera::extension;
  tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device, private_pools,
                             checkpoints>
      memory;
  tessera::any_allocator any(memory);
  private_pool pool(any);
  (void)any.get<checkpoints>().record(pool.id());
}
