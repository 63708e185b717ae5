// SPDX-License-Identifier: Apache-2.0
// All of the library without exceptions and run-time types.
#include <tessera/adaptor/locked.hpp>
#include <tessera/adaptor/per_device.hpp>
#include <tessera/adaptor/per_stream.hpp>
#include <tessera/law/provider.hpp>
#include <tessera/law/recipe.hpp>
#include <tessera/tessera.hpp>
#include <tessera/trace/verify.hpp>

static_assert(tessera::law::recipe<tessera::pytorch<>>());

int main() {
  tessera::simulated_device device{tessera::simulated_device::options{.capacity = 1 << 22}};
  if (!tessera::law::provider(device)) return 1;
  tessera::caching_allocator<tessera::pytorch<>, tessera::simulated_device> pool{std::move(device)};
  void* p = pool.allocate(1000);
  const bool refuses = pool.try_allocate(std::size_t{1} << 30) == nullptr;
  pool.deallocate(p, 1000);
  pool.trim();
  std::vector<tessera::simulated_device> devices(1);
  tessera::per_device<tessera::pytorch<>, tessera::simulated_device, tessera::per_stream> safe{
      std::move(devices)};
  safe.deallocate(safe.allocate(1000, 0));
  tessera::locked<tessera::pytorch<>, tessera::simulated_device> simple;
  simple.deallocate(simple.allocate(1000));
  return safe.audit() == nullptr && simple.audit() == nullptr && refuses && pool.audit() == nullptr &&
                 pool.now().reserved == 0
             ? 0
             : 1;
}
