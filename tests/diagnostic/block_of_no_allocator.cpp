// expect: A must be a stream_allocator, which of a per_device the front() of one device is
// SPDX-License-Identifier: Apache-2.0
#include <tessera/interop/unique_block.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

int main() { tessera::unique_block<tessera::simulated_device> held; }
