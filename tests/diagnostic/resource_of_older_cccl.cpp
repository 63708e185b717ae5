// expect: deleted
// SPDX-License-Identifier: Apache-2.0
#include <cstddef>

#include <tessera/interop/cccl.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

int main() {
  tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device> pool;
  tessera::interop::cccl_resource memory(pool);
  const std::size_t bytes = 1'000'000, alignment = 256;
  void* const p = memory.allocate(bytes, alignment);  // as CCCL 3.0 and std::pmr write it
  memory.deallocate_sync(p, bytes, alignment);
}
