// expect first: no_policy_of_the_recipe_reads<
// expect text: segment_size_mb
// SPDX-License-Identifier: Apache-2.0
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

tessera::caching_allocator<tessera::recipe::torch_npu<"segment_size_mb:40">,
                           tessera::provider::simulated_device>
    pool;
