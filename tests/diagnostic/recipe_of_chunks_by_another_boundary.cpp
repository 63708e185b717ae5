// expect: pools and growth agree on small blocks: pools.boundary == growth.boundary
// SPDX-License-Identifier: Apache-2.0
#include <tessera/policy/chunks.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

using namespace tessera::literals;
using uneven =
    tessera::recipe::with<tessera::recipe::pytorch<>, tessera::policy::grow_by_chunks<2_MiB, 10_MiB, 2_MiB>>;

int main() { tessera::caching_allocator<uneven, tessera::provider::simulated_device> pool; }
