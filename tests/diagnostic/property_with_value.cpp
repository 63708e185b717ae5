// expect: cccl_resource: Properties must be tags. Write a get_property overload for a property that has a value
// SPDX-License-Identifier: Apache-2.0
#include <cstddef>

#include <tessera/interop/cccl.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

struct bytes_there_are {
  using value_type = std::size_t;
};
using pool_type = tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device>;

int main() {
  pool_type pool;
  tessera::interop::cccl_resource<pool_type, bytes_there_are> memory(pool);
}
