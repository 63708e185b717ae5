// expect first: an_arena_has_only_a_part_of_the_memory_so_use_locked_for_this_extension
// SPDX-License-Identifier: Apache-2.0
#include <tessera/concurrent/per_stream.hpp>
#include <tessera/extension/private_pools.hpp>
#include <tessera/extension/quotas.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>
#include <tessera/trace/captured.hpp>

int main() {
  using namespace tessera::extension;
  using pool = tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device,
                                          private_pools, quotas>;
  tessera::trace::captured<tessera::concurrent::per_stream<pool>> memory;
  (void)memory.get<quotas>().set({}, {.guaranteed = 1000});
}
