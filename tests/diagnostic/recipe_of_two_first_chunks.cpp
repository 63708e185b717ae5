// expect: growth and eviction follow one schedule of chunks
// SPDX-License-Identifier: Apache-2.0
#include <tessera/policy/chunks.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

using namespace tessera::literals;
using grows = tessera::policy::grow_by_schedule<tessera::policy::chunk_schedule{.first = 1_GiB}>;
using uneven = tessera::recipe::with<tessera::recipe::paddle_family::naive_best_fit, grows>;

int main() { tessera::caching_allocator<uneven, tessera::provider::simulated_device> pool; }
