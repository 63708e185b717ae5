// expect first: pool_small_and_large<Boundary>: Boundary is in bytes
// SPDX-License-Identifier: Apache-2.0
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

using namespace tessera::literals;
using wrong = tessera::recipe::with<tessera::recipe::pytorch<>, tessera::policy::pool_small_and_large<1>>;

int main() { tessera::caching_allocator<wrong, tessera::provider::simulated_device> pool; }
