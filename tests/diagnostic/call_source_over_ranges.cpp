// expect first: a_pool_upstream_needs_a_recipe_that_acquires_segments
// SPDX-License-Identifier: Apache-2.0
#include <cstddef>

#include <tessera/concurrent/locked.hpp>
#include <tessera/extension/private_pools.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

struct source {
  void* acquire(std::size_t) noexcept { return nullptr; }
  bool release(void*, std::size_t) noexcept { return false; }
};

int main() {
  using tessera::extension::private_pools;
  tessera::concurrent::locked<tessera::caching_allocator<tessera::recipe::stitched,
                                                         tessera::provider::simulated_device, private_pools>>
      memory;
  source own;
  (void)memory.get<private_pools>().create(own);
}
