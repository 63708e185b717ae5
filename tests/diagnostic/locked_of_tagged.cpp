// expect first: A is a caching_allocator. Other front ends go around, as in tagged<locked<A>>
// SPDX-License-Identifier: Apache-2.0
#include <tessera/concurrent/locked.hpp>
#include <tessera/debug/tagged.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

using plain = tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device>;

int main() { tessera::concurrent::locked<tessera::debug::tagged<plain>> pool; }
