// expect: cuda_mempool<A>: A is a caching_allocator, or a locked around one
// SPDX-License-Identifier: Apache-2.0
#include <tessera/concurrent/per_stream.hpp>
#include <tessera/interop/cuda_mempool.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

int main() {
  tessera::interop::cuda_mempool<tessera::concurrent::per_stream<
      tessera::caching_allocator<tessera::recipe::cuda_async, tessera::provider::simulated_device>>>
      pool;
}
