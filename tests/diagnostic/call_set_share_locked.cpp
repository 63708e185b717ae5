// expect first: shares_need_guarantee_shares_around_the_growth_policy
// SPDX-License-Identifier: Apache-2.0
#include <tessera/concurrent/locked.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

int main() {
  tessera::locked<tessera::pytorch<>, tessera::simulated_device> memory;
  (void)memory.set_share({}, {.guaranteed = 1000});
}
