// expect first: no_policy_of_the_recipe_reads<
// expect text: expandable_segments
// SPDX-License-Identifier: Apache-2.0
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

tessera::caching_allocator<tessera::recipe::pytorch<"backend:cudaMallocAsync,expandable_segments:True">,
                           tessera::provider::simulated_device>
    pool;
