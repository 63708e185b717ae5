// expect: A must be an allocator with the calls of caching_allocator. For a per_device, use front(d) of one device
// SPDX-License-Identifier: Apache-2.0
#include <tessera/interop/ownership.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

int main() { tessera::interop::unique_block<tessera::provider::simulated_device> held; }
