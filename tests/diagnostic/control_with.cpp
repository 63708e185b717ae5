// expect: compiles
// SPDX-License-Identifier: Apache-2.0
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

using right = tessera::with<tessera::pytorch<>, tessera::split_never<>, tessera::evict_never>;

int main() { tessera::caching_allocator<right, tessera::simulated_device> pool; }
