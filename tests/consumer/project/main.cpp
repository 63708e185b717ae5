// SPDX-License-Identifier: Apache-2.0
#include <tessera/tessera.hpp>

std::size_t reserved_elsewhere();

int main() {
  tessera::caching_allocator<tessera::pytorch<>, tessera::simulated_device> pool;
  void* p = pool.allocate(1000);
  pool.deallocate(p);
  return pool.now().reserved == reserved_elsewhere() ? 0 : 1;
}
