// expect first: Front is made from a device and policies, unlike planned
// SPDX-License-Identifier: Apache-2.0
#include <tessera/concurrent/per_device.hpp>
#include <tessera/plan/planned.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

using plain = tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device>;

int main() { tessera::concurrent::per_device<tessera::plan::planned<plain>> pool({}); }
