// needs: cuda/memory_resource cuda_runtime_api.h
// SPDX-License-Identifier: Apache-2.0
// Checks cccl_resource with the concepts and wrappers of CCCL itself. Nothing here calls a device.
#include <cstddef>
#include <cstdint>
#include <cstdio>

#define LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE  // up to CCCL 3.0
#include <cuda/memory_resource>
#include <cuda/stream_ref>
#include <cuda/version>

#include <tessera/concurrent/locked.hpp>
#include <tessera/interop/cccl.hpp>
#include <tessera/interop/ownership.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

namespace {

using pool_type = tessera::concurrent::locked<
    tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device>>;
using memory_type = tessera::interop::cccl_resource<tessera::interop::shared_allocator<pool_type>,
                                                    cuda::mr::device_accessible>;

#if CCCL_VERSION >= 3001000
static_assert(cuda::mr::synchronous_resource_with<memory_type, cuda::mr::device_accessible>);
static_assert(cuda::mr::resource_with<memory_type, cuda::mr::device_accessible>);
static_assert(!cuda::has_property<memory_type, cuda::mr::host_accessible>);
static_assert(!cuda::mr::resource_with<memory_type, cuda::mr::host_accessible>);
// Memory for both sides: a resource of it serves where either is asked for.
using host_type =
    tessera::interop::cccl_resource<pool_type, cuda::mr::host_accessible, cuda::mr::device_accessible>;
static_assert(cuda::mr::resource_with<host_type, cuda::mr::device_accessible, cuda::mr::host_accessible>);

cuda::stream_ref stream(std::uintptr_t number) { return {reinterpret_cast<cudaStream_t>(number)}; }

bool fail(const char* text) {
  std::puts(text);
  return false;
}

template <typename Resource>
bool serves(Resource& memory, pool_type& pool) {
  void* const p = memory.allocate(stream(0x10000), 1'000'000, 4096);
  if (pool.current_usage().allocated < 1'000'000) return fail("the live bytes are too few");
  if (reinterpret_cast<std::uintptr_t>(p) % 4096 != 0) return fail("the alignment is not kept");
  memory.deallocate(stream(0x10000), p, 1'000'000, 4096);
  void* const on_other = memory.allocate(stream(0x20000), 1'000'000, 4096);
  if (on_other == p) return fail("two streams share a block");
  memory.deallocate(stream(0x20000), on_other, 1'000'000, 4096);
  memory.deallocate_sync(memory.allocate_sync(1000, 256), 1000, 256);
  return pool.current_usage().allocated == 0 && pool.audit() == nullptr;
}

/// Serves through the wrappers of CCCL 3.2 that know no streams.
template <typename Resource>
bool serves_without_streams(Resource memory, pool_type& pool) {
  void* const p = memory.allocate_sync(1000, 256);
  if (pool.current_usage().allocated < 1000) return fail("the live bytes are too few");
  memory.deallocate_sync(p, 1000, 256);
  return pool.current_usage().allocated == 0;
}

/// A holder keeps the allocator alive, and throws the allocator's exception.
template <typename Holder>
bool outlives(Holder kept) {
  try {
    kept.deallocate_sync(kept.allocate_sync(std::size_t{1} << 50, 256), std::size_t{1} << 50, 256);
    return fail("memory for 2^50 bytes is refused");
  } catch (const tessera::out_of_memory&) {
    kept.deallocate(stream(0x10000), kept.allocate(stream(0x10000), 1000, 256), 1000, 256);
    return true;
  }
}

int use() {
  auto pool = tessera::interop::shared_allocator<pool_type>::make();
  memory_type memory(pool);
  cuda::mr::resource_ref<cuda::mr::device_accessible> ref{memory};
  if (!serves(memory, *pool) || !serves(ref, *pool)) return 1;
#if CCCL_VERSION >= 3002000
  cuda::mr::any_resource<cuda::mr::device_accessible> kept{memory};
  cuda::mr::any_resource<cuda::mr::device_accessible> copy = kept;
  if (!(copy == kept)) {
    fail("copies of one resource differ");
    return 1;
  }
  if (!serves(copy, *pool)) return 1;
  if (!serves_without_streams(cuda::mr::synchronous_resource_ref<cuda::mr::device_accessible>{memory},
                              *pool) ||
      !serves_without_streams(cuda::mr::any_synchronous_resource<cuda::mr::device_accessible>{memory}, *pool))
    return 1;
  const auto own = tessera::interop::shared_allocator<pool_type>::make();
  if (!outlives(cuda::mr::any_resource<cuda::mr::device_accessible>{memory_type(own)})) return 1;
#endif
  return 0;
}
#else
// Versions before 3.1 call other functions. They must not exist, or their arguments would be misinterpreted.
static_assert(!cuda::mr::resource<memory_type> && !cuda::mr::async_resource<memory_type>);

int use() { return std::puts("SKIPPED: CCCL before 3.1 has other resources"), 0; }
#endif

}  // namespace

int main() {
  std::printf("CCCL %d\n", CCCL_VERSION);
  return use();
}
