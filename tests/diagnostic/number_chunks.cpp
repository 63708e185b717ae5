// expect first: grow_by_chunks<Small, Large, Boundary>: each is in bytes
// SPDX-License-Identifier: Apache-2.0
#include <tessera/policy/chunks.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

using namespace tessera::literals;
using wrong = tessera::recipe::with<tessera::recipe::pytorch<>, tessera::policy::grow_by_chunks<2_MiB, 10>>;

int main() { tessera::caching_allocator<wrong, tessera::provider::simulated_device> pool; }
