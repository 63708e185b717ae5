// needs: rmm/resource_ref.hpp cuda/memory_resource cuda_runtime_api.h
// SPDX-License-Identifier: Apache-2.0
// Checks cccl_resource with the references and holders that RMM passes on. Nothing here calls a device.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <new>
#include <type_traits>

#define LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE  // up to CCCL 3.0
#include <cuda/memory_resource>
#include <cuda/stream_ref>
#include <cuda/version>

#include <rmm/error.hpp>
#include <rmm/resource_ref.hpp>

#include <tessera/concurrent/locked.hpp>
#include <tessera/interop/cccl.hpp>
#include <tessera/interop/ownership.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

namespace {

#if CCCL_VERSION >= 3002000
using pool_type = tessera::concurrent::locked<
    tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device>>;
using memory_type = tessera::interop::cccl_resource<tessera::interop::shared_allocator<pool_type>,
                                                    cuda::mr::device_accessible>;

/// RMM's adaptors catch rmm::out_of_memory. Only RMM's library has its functions, so this is not called.
struct rmm_errors {
  void operator()(const std::exception& error) const;
};
static_assert(std::is_constructible_v<rmm::out_of_memory, const char*>);
static_assert(cuda::mr::resource_with<
              tessera::interop::cccl_resource<
                  tessera::interop::shared_allocator<tessera::interop::rethrowing<pool_type, rmm_errors>>,
                  cuda::mr::device_accessible>,
              cuda::mr::device_accessible>);

int use() {
  auto pool = tessera::interop::shared_allocator<pool_type>::make();
  const cuda::stream_ref stream{reinterpret_cast<cudaStream_t>(std::uintptr_t{0x10000})};
  cuda::mr::any_resource<cuda::mr::device_accessible> kept{memory_type(pool)};
  rmm::device_async_resource_ref memory{kept};
  void* const p = memory.allocate(stream, 1000, 256);
  if (pool->current_usage().requested != 1000) return std::puts("the allocator does not serve"), 1;
  memory.deallocate(stream, p, 1000, 256);
  try {
    memory.deallocate(stream, memory.allocate(stream, std::size_t{1} << 50, 256), std::size_t{1} << 50, 256);
  } catch (const std::bad_alloc&) {
    return pool->current_usage().allocated == 0 && pool->audit() == nullptr ? 0 : 1;
  }
  return std::puts("full memory throws std::bad_alloc"), 1;
}
#else
int use() { return std::puts("SKIPPED: RMM with CCCL before 3.2 has other resources"), 0; }
#endif

}  // namespace

int main() { return use(); }
