// expect first: split_below<Max, Slack>: Slack is in bytes
// SPDX-License-Identifier: Apache-2.0
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

using namespace tessera::literals;
using wrong = tessera::with<tessera::pytorch<>, tessera::split_below<32_MiB, 20>>;

int main() { tessera::caching_allocator<wrong, tessera::simulated_device> pool; }
