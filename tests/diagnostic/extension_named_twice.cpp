// expect: an extension is named twice behind the provider
// SPDX-License-Identifier: Apache-2.0
#include <tessera/extension/private_pools.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

int main() {
  tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device,
                             tessera::extension::private_pools, tessera::extension::private_pools>
      pool;
}
