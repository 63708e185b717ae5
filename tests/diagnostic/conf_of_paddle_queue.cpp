// expect first: no_policy_of_the_recipe_reads<
// expect text: FLAGS_eager_delete_tensor_gb
// SPDX-License-Identifier: Apache-2.0
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

tessera::caching_allocator<tessera::recipe::paddle<"FLAGS_eager_delete_tensor_gb=1">,
                           tessera::provider::simulated_device>
    pool;
