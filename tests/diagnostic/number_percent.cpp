// expect: percent: the count is at most 100
// SPDX-License-Identifier: Apache-2.0
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

using namespace tessera::literals;
using wrong = tessera::recipe::with<tessera::recipe::pytorch<>,
                                    tessera::policy::evict_idle_above<tessera::percent(160)>>;

int main() { tessera::caching_allocator<wrong, tessera::provider::simulated_device> pool; }
