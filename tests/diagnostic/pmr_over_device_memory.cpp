// expect: A must be a host_allocator, as objects are kept in its memory: its provider must say is_host_visible
// SPDX-License-Identifier: Apache-2.0
#include <tessera/interop/pmr_resource.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

int main() {
  tessera::caching_allocator<tessera::pytorch<>, tessera::simulated_device> pool;
  tessera::pmr_resource memory(pool);
}
