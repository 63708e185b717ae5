// expect: cuda_mempool: Recipe::streams must allow reuse across streams
// SPDX-License-Identifier: Apache-2.0
#include <tessera/interop/cuda_mempool.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

int main() {
  tessera::interop::cuda_mempool<
      tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device>>
      pool;
}
