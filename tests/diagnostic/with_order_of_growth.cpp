// expect first: ordered<Split, Order>: Split is a split policy
// SPDX-License-Identifier: Apache-2.0
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

using ordered =
    tessera::policy::ordered<tessera::policy::grow_exactly<>, tessera::free_order::oldest_segment>;
using wrong = tessera::recipe::with<tessera::recipe::pytorch<>, ordered>;

int main() { tessera::caching_allocator<wrong, tessera::provider::simulated_device> pool; }
