// expect: a_pool_upstream_needs_a_recipe_that_acquires_segments
// SPDX-License-Identifier: Apache-2.0
#include <cstddef>

#include <tessera/extension/private_pools.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

struct source {
  void* acquire(std::size_t) noexcept { return nullptr; }
  bool release(void*, std::size_t) noexcept { return false; }
};

int main() {
  tessera::caching_allocator<tessera::recipe::stitched, tessera::provider::simulated_device,
                             tessera::extension::private_pools>
      memory;
  source own;
  tessera::extension::private_pool pool(memory, own);
}
