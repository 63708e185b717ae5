// expect first: round_to_divisions<Step, Table>: each number of divisions is 0, 1 or another power of two
// SPDX-License-Identifier: Apache-2.0
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

using namespace tessera::literals;
using wrong = tessera::recipe::with<tessera::recipe::pytorch<>,
                                    tessera::policy::round_to_divisions<512, tessera::divisions::all(6)>>;

int main() { tessera::caching_allocator<wrong, tessera::provider::simulated_device> pool; }
