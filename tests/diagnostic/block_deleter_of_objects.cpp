// expect: unique_block::deleter: the type must be void or trivially destructible
// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <string>

#include <tessera/interop/ownership.hpp>
#include <tessera/provider/host_pinned.hpp>
#include <tessera/tessera.hpp>

using pool_type = tessera::caching_allocator<tessera::recipe::pinned_packed, tessera::provider::host_pinned>;
using deleter = tessera::interop::unique_block<pool_type>::deleter;

int main() {
  pool_type pool;
  std::unique_ptr<std::string, deleter> text(nullptr, deleter(pool));
}
