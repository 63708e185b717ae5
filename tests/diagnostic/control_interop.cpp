// expect: compiles
// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <vector>

#include <tessera/concurrent/locked.hpp>
#include <tessera/interop/cccl.hpp>
#include <tessera/interop/ownership.hpp>
#include <tessera/interop/std_allocators.hpp>
#include <tessera/provider/host_pinned.hpp>
#include <tessera/tessera.hpp>

using pool_type = tessera::shared_allocator<tessera::locked<tessera::pinned_packed, tessera::host_pinned>>;
struct host_accessible {};

int main() {
  pool_type pool;
  tessera::pmr_resource memory(pool);
  std::vector<int, tessera::typed_allocator<int, pool_type>> numbers(pool);
  numbers.push_back(1);
  tessera::stream_resource<pool_type, host_accessible> resource(pool);
  tessera::unique_block<pool_type> held;
  using deleter = tessera::unique_block<pool_type>::deleter;
  std::unique_ptr<int, deleter> number(nullptr, deleter(pool));
}
