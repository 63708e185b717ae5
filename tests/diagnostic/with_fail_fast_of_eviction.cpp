// expect first: fail_fast<Recovery>: Recovery is a recovery policy
// SPDX-License-Identifier: Apache-2.0
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

using wrong = tessera::recipe::with<tessera::recipe::pytorch<>,
                                    tessera::policy::fail_fast<tessera::policy::evict_never>>;

int main() { tessera::caching_allocator<wrong, tessera::provider::simulated_device> pool; }
