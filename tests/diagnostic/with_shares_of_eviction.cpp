// expect first: guarantee_shares<Growth>: Growth is a growth policy
// SPDX-License-Identifier: Apache-2.0
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

using wrong = tessera::with<tessera::pytorch<>, tessera::guarantee_shares<tessera::evict_never>>;

int main() { tessera::caching_allocator<wrong, tessera::simulated_device> pool; }
