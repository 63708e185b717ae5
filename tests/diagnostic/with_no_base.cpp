// expect first: with<Base, Policy...>: the first type is no recipe
// SPDX-License-Identifier: Apache-2.0
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

using wrong = tessera::recipe::with<tessera::policy::round_to_multiple<256>, tessera::policy::split_never<>>;

int main() { tessera::caching_allocator<wrong, tessera::provider::simulated_device> pool; }
