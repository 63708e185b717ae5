// SPDX-License-Identifier: Apache-2.0
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

int main() {
  tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device> allocator;
  allocator.deallocate(allocator.allocate(1000));
  return allocator.audit() == nullptr ? 0 : 1;
}
