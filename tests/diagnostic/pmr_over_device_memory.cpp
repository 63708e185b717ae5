// expect: A must allocate host memory, because objects are constructed in it: its provider must set is_host_visible
// SPDX-License-Identifier: Apache-2.0
#include <tessera/interop/std_allocators.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

int main() {
  tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device> pool;
  tessera::interop::pmr_resource memory(pool);
}
