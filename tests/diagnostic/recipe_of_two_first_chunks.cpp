// expect: growth and eviction follow one plan of chunks
// SPDX-License-Identifier: Apache-2.0
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

using namespace tessera::literals;
using grows = tessera::grow_by_plan<tessera::chunk_plan{.first = 1_GiB}>;
using uneven = tessera::with<tessera::paddle_family::naive_best_fit, grows>;

int main() { tessera::caching_allocator<uneven, tessera::simulated_device> pool; }
