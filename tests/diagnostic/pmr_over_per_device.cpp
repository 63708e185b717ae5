// expect: A must be an allocator with the calls of caching_allocator. For a per_device, use front(d) of one device
// SPDX-License-Identifier: Apache-2.0
#include <tessera/concurrent/per_device.hpp>
#include <tessera/interop/std_allocators.hpp>
#include <tessera/provider/host_pinned.hpp>
#include <tessera/tessera.hpp>

int main() {
  tessera::per_device<tessera::pinned_packed, tessera::host_pinned> pools({});
  tessera::pmr_resource memory(pools);
}
