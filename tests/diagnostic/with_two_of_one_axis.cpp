// expect: two policies for one axis
// SPDX-License-Identifier: Apache-2.0
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

using wrong = tessera::with<tessera::pytorch<>, tessera::split_never<>, tessera::split_below<>>;

int main() { tessera::caching_allocator<wrong, tessera::simulated_device> pool; }
