// expect: two policies for one axis
// SPDX-License-Identifier: Apache-2.0
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

using wrong = tessera::recipe::with<tessera::recipe::pytorch<>, tessera::policy::split_never<>,
                                    tessera::policy::split_below<>>;

int main() { tessera::caching_allocator<wrong, tessera::provider::simulated_device> pool; }
