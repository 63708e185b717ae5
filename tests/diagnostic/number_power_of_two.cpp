// expect first: round_to_power_of_two<Min, Threshold>: Threshold is in bytes
// SPDX-License-Identifier: Apache-2.0
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

using namespace tessera::literals;
using wrong =
    tessera::recipe::with<tessera::recipe::pytorch<>, tessera::policy::round_to_power_of_two<512, 64>>;

int main() { tessera::caching_allocator<wrong, tessera::provider::simulated_device> pool; }
