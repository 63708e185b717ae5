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

using allocator_type =
    tessera::caching_allocator<tessera::recipe::pinned_packed, tessera::provider::host_pinned>;
using pool_type = tessera::interop::shared_allocator<tessera::concurrent::locked<allocator_type>>;
struct host_accessible {};

int main() {
  pool_type pool;
  tessera::interop::pmr_resource memory(pool);
  std::vector<int, tessera::interop::typed_allocator<int, pool_type>> numbers(pool);
  numbers.push_back(1);
  tessera::interop::cccl_resource<pool_type, host_accessible> resource(pool);
  tessera::interop::unique_block<pool_type> held;
  using deleter = tessera::interop::unique_block<pool_type>::deleter;
  std::unique_ptr<int, deleter> number(nullptr, deleter(pool));
}
