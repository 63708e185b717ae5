// expect: no small block is oversize: pools.boundary < split.oversize_from()
// SPDX-License-Identifier: Apache-2.0
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

using namespace tessera::literals;
using wrong = tessera::recipe::with<tessera::recipe::pytorch<>, tessera::policy::pool_small_and_large<64_MiB>,
                                    tessera::policy::split_below<32_MiB>>;

int main() { tessera::caching_allocator<wrong, tessera::provider::simulated_device> pool; }
