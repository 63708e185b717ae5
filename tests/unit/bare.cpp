// SPDX-License-Identifier: Apache-2.0
// All headers without exceptions and run-time types, in two sources of two standards.
#include <every_header.hpp>

#include "layout.hpp"

std::size_t layout_by_the_other_standard();
bool other_standard_frees(
    tessera::concurrent::locked<
        tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device>>& pool,
    void* p);

static_assert(tessera::law::recipe<tessera::recipe::pytorch<>>());

/// The adapters for other libraries, over host memory.
template <typename Pool>
bool serve_other_libraries(tessera::interop::shared_allocator<Pool> pool) {
  {
    tessera::interop::pmr_resource memory(pool);
    std::pmr::vector<int> numbers({1, 2, 3}, &memory);
    std::vector<int, tessera::interop::typed_allocator<int, tessera::interop::shared_allocator<Pool>>> copy(
        numbers.begin(), numbers.end(), pool);
    tessera::interop::cccl_resource resource(pool);
    tessera::interop::unique_block block = tessera::interop::make_block(pool, 1000);
    resource.deallocate_sync(resource.allocate_sync(1000, 4096), 1000, 4096);
    if (copy.back() != 3 || !memory.is_equal(memory) || !block) return false;
  }
  return pool.current_usage().allocated == 0;
}

int main() {
  tessera::provider::simulated_device device{
      tessera::provider::simulated_device::options{.capacity = 1 << 22}};
  if (!tessera::law::provider(device)) return 1;
  tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device> pool{
      std::move(device)};
  void* p = pool.allocate(1000);
  const bool refuses = pool.try_allocate(std::size_t{1} << 30) == nullptr;
  pool.deallocate(p, 1000);
  pool.trim();
  std::vector<tessera::provider::simulated_device> devices(1);
  tessera::concurrent::per_device<tessera::concurrent::per_stream<
      tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device>>>
      safe{std::move(devices)};
  safe.deallocate(safe.allocate(1000, 0));
  tessera::concurrent::locked<
      tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device>>
      simple;
  const bool is_one_program =
      layout_by_the_other_standard() == layout() && other_standard_frees(simple, simple.allocate(1000));
  const bool serves = serve_other_libraries(
      tessera::interop::shared_allocator<tessera::concurrent::locked<
          tessera::caching_allocator<tessera::recipe::pinned_packed, tessera::provider::host_pinned>>>::
          make(tessera::provider::host_pinned{tessera::provider::host_pinned::options{
              .pin = tessera::provider::host_pinned::pinning::never}}));
  return serves && is_one_program && safe.audit() == nullptr && simple.audit() == nullptr && refuses &&
                 pool.audit() == nullptr && pool.current_usage().reserved == 0
             ? 0
             : 1;
}
