// expect first: evict_idle_above<Threshold>: Threshold is at most percent(100) of the limit
// SPDX-License-Identifier: Apache-2.0
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

using namespace tessera::literals;
using wrong = tessera::recipe::with<tessera::recipe::pytorch<>,
                                    tessera::policy::evict_idle_above<tessera::fraction{1'600'000'000}>>;

int main() { tessera::caching_allocator<wrong, tessera::provider::simulated_device> pool; }
