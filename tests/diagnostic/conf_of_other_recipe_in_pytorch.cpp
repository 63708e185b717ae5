// expect first: no_policy_of_the_recipe_reads<
// expect text: expandable_segments_reserve
// SPDX-License-Identifier: Apache-2.0
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

tessera::caching_allocator<tessera::recipe::pytorch<"expandable_segments_reserve:0.5">,
                           tessera::provider::simulated_device>
    pool;
