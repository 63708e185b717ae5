// expect: compiles
// SPDX-License-Identifier: Apache-2.0
#include <tessera/config/paddle.hpp>
#include <tessera/config/torch_npu.hpp>
#include <tessera/tessera.hpp>

using namespace tessera::config;
constexpr auto npu = settings_in<torch_npu, text("max_split_size_mb:21,expandable_segments:False")>();
constexpr auto flags = settings_in<paddle, text("FLAGS_gpu_memory_limit_mb=8,FLAGS_free_idle_chunk=1")>();
static_assert(npu.max_split_size == 21 << 20 && flags.free_idle_chunk);

int main() {
  tessera::caching_allocator<tessera::pytorch<"max_split_size_mb:128">, tessera::simulated_device> pool;
}
