// expect: A must be an allocator with the calls of caching_allocator. For a per_device, use front(d) of one device
// SPDX-License-Identifier: Apache-2.0
#include <tessera/concurrent/locked.hpp>
#include <tessera/concurrent/per_device.hpp>
#include <tessera/interop/std_allocators.hpp>
#include <tessera/provider/host_pinned.hpp>
#include <tessera/tessera.hpp>

int main() {
  using pool_type =
      tessera::caching_allocator<tessera::recipe::pinned_packed, tessera::provider::host_pinned>;
  tessera::concurrent::per_device<tessera::concurrent::locked<pool_type>> pools({});
  tessera::interop::pmr_resource memory(pools);
}
