// expect first: a front end wraps the allocator of one device: use front(d)
// SPDX-License-Identifier: Apache-2.0
#include <tessera/concurrent/per_device.hpp>
#include <tessera/debug/tagged.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

using plain = tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device>;

int main() { tessera::debug::tagged<tessera::concurrent::per_device<plain>> pool({}); }
