// expect: compiles
// SPDX-License-Identifier: Apache-2.0
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

using right = tessera::recipe::with<tessera::recipe::pytorch<>, tessera::policy::split_never<>,
                                    tessera::policy::evict_never>;

int main() { tessera::caching_allocator<right, tessera::provider::simulated_device> pool; }
