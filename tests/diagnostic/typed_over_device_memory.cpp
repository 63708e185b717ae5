// expect: A must allocate host memory, because objects are constructed in it: its provider must set is_host_visible
// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include <tessera/concurrent/locked.hpp>
#include <tessera/interop/ownership.hpp>
#include <tessera/interop/std_allocators.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

using allocator_type =
    tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device>;
using pool_type = tessera::interop::shared_allocator<tessera::concurrent::locked<allocator_type>>;

int main() {
  std::vector<int, tessera::interop::typed_allocator<int, pool_type>> numbers(pool_type{});
  numbers.push_back(1);
}
