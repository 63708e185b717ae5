// SPDX-License-Identifier: Apache-2.0
#include <string_view>

#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

#ifdef VERSION_OF_PACKAGE
static_assert(std::string_view(TESSERA_VERSION_STRING) == VERSION_OF_PACKAGE);
#endif
static_assert(TESSERA_VERSION ==
              TESSERA_VERSION_MAJOR * 10000 + TESSERA_VERSION_MINOR * 100 + TESSERA_VERSION_PATCH);

std::size_t reserved_elsewhere();

int main() {
  tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device> pool;
  void* p = pool.allocate(1000);
  pool.deallocate(p);
  return pool.current_usage().reserved == reserved_elsewhere() ? 0 : 1;
}
