// expect first: no_policy_of_the_recipe_reads<
// expect text: pinned_max_cached_size_mb
// SPDX-License-Identifier: Apache-2.0
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

tessera::caching_allocator<
    tessera::recipe::torch_npu_pinned<"pin_memory_expandable_segments:True,pinned_max_cached_size_mb:32">,
    tessera::provider::simulated_device>
    pool;
