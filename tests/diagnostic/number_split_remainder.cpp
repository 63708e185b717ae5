// expect first: split_if_remainder_at_least<Remainder>: the remainder must be above 0 bytes
// SPDX-License-Identifier: Apache-2.0
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

using namespace tessera::literals;
using wrong =
    tessera::recipe::with<tessera::recipe::pytorch<>, tessera::policy::split_if_remainder_at_least<0>>;

int main() { tessera::caching_allocator<wrong, tessera::provider::simulated_device> pool; }
