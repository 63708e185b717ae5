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
}
