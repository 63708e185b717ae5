// expect: any_allocator_needs_the_front_of_one_device
// SPDX-License-Identifier: Apache-2.0
#include <tessera/any_allocator.hpp>
#include <tessera/concurrent/locked.hpp>
#include <tessera/concurrent/per_device.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

int main() {
  tessera::concurrent::per_device<tessera::concurrent::locked<
      tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device>>>
      memory({});
  tessera::any_allocator any(memory);
}
