// SPDX-License-Identifier: Apache-2.0
// A second translation unit: everything in the headers must link twice.
#include <tessera/provider/host_pinned.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

std::size_t reserved_elsewhere() {
  tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::host_pinned> pinned{
      tessera::provider::host_pinned{
          {.capacity = 1 << 22, .pin = tessera::provider::host_pinned::pinning::never}}};
  void* q = pinned.allocate(1000);
  pinned.deallocate(q);
  tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device> pool;
  void* p = pool.allocate(1000);
  pool.deallocate(p);
  return pool.current_usage().reserved;
}
