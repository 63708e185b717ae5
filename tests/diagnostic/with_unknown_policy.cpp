// expect first: with<>: a type given as a policy fits no axis
// SPDX-License-Identifier: Apache-2.0
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

using wrong = tessera::recipe::with<tessera::recipe::pytorch<>, int>;

int main() { tessera::caching_allocator<wrong, tessera::provider::simulated_device> pool; }
