// expect first: no_policy_of_the_recipe_reads<
// expect text: FLAGS_fraction_of_gpu_memory_to_use
// SPDX-License-Identifier: Apache-2.0
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

tessera::caching_allocator<tessera::recipe::paddle<"FLAGS_fraction_of_gpu_memory_to_use=0.4">,
                           tessera::provider::simulated_device>
    pool;
