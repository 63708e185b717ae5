// expect first: configured_has_no_shares
// SPDX-License-Identifier: Apache-2.0
#include <tessera/configured.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

int main() {
  tessera::configured<tessera::pytorch_family, tessera::simulated_device> memory({});
  (void)memory.set_share({}, {.guaranteed = 1000});
}
