// expect first: no_policy_of_the_recipe_reads<
// expect text: configured_pinned: segments are registered with the device
// SPDX-License-Identifier: Apache-2.0
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

tessera::caching_allocator<tessera::recipe::torch_npu_pinned<"pinned_mem_register:True">,
                           tessera::provider::simulated_device>
    pool;
