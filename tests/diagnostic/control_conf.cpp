// expect: compiles
// SPDX-License-Identifier: Apache-2.0
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

template <typename Recipe>
using pool = tessera::caching_allocator<Recipe, tessera::provider::simulated_device>;

int main() {
  pool<tessera::recipe::pytorch<"max_split_size_mb:128">> first;
  pool<tessera::recipe::torch_npu<"max_split_size_mb:21,expandable_segments:False,base_addr_aligned_kb:16">>
      second;
  pool<tessera::recipe::paddle<"FLAGS_gpu_memory_limit_mb=8,FLAGS_free_idle_chunk=1">> third;
  // Some keys may be idle: the threshold beside expandable_segments, and those for the other memory.
  pool<tessera::recipe::pytorch<
      "expandable_segments:True,garbage_collection_threshold:0.8,pinned_max_cached_size_mb:64">>
      fourth;
  pool<tessera::recipe::pytorch_pinned<"max_split_size_mb:64,pinned_max_cached_size_mb:64">> fifth;
  pool<tessera::recipe::paddle<
      "FLAGS_small_pool_size_in_mb=1,FLAGS_large_pool_auto_growth_chunk_size_in_mb=8">>
      sixth;
}
