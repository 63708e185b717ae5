// expect first: with_fail_fast<Recovery>: Recovery is a recovery policy
// SPDX-License-Identifier: Apache-2.0
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

using wrong = tessera::with<tessera::pytorch<>, tessera::with_fail_fast<tessera::evict_never>>;

int main() { tessera::caching_allocator<wrong, tessera::simulated_device> pool; }
