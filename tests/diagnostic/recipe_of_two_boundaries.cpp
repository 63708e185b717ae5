// expect: pools and split agree on small blocks: pools.boundary == split::max_small_block
// SPDX-License-Identifier: Apache-2.0
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

using namespace tessera::literals;
using uneven =
    tessera::recipe::with<tessera::recipe::pytorch<>, tessera::policy::split_below<32_MiB, 20_MiB, 512_KiB>>;

int main() { tessera::caching_allocator<uneven, tessera::provider::simulated_device> pool; }
