// expect first: shares_need_guarantee_shares_around_the_growth_policy
// SPDX-License-Identifier: Apache-2.0
#include <tessera/private_pool.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

int main() {
  tessera::caching_allocator<tessera::pytorch<>, tessera::simulated_device> memory;
  tessera::private_pool pool(memory);
  (void)pool.set_share({.guaranteed = 1000});
}
