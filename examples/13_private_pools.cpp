// SPDX-License-Identifier: Apache-2.0
// Private pools: the memory of a graph that is captured once and replayed often.
#include <tessera/extension/private_pools.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

#include <cstdio>
#include <vector>

using namespace tessera::literals;

namespace {

using allocator_type =
    tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device,
                               tessera::extension::private_pools>;

/// The work of a step, as addresses that each replay uses again.
struct graph {
  tessera::extension::private_pool<allocator_type> memory;
  std::vector<void*> addresses{};
};

/// Records the requests of a step. Its temporary block returns to the pool, so no other request gets it.
graph capture(allocator_type& allocator, tessera::stream_id stream) {
  graph made{tessera::extension::private_pool(allocator)};
  const tessera::extension::pool_scope scope(made.memory, stream, tessera::extension::scope_kind::capture);
  void* const temporary = allocator.allocate(30_MiB, stream);
  void* const result = allocator.allocate(10_MiB, stream);
  allocator.deallocate(temporary);
  made.addresses = {temporary, result};
  return made;
}

/// Lends the memory of a graph that is not replayed for a while, and takes it back before the next replay.
bool lend_and_take_back() {
  allocator_type allocator{tessera::provider::simulated_device{{.capacity = 64_MiB}}};
  const tessera::stream_id stream{1};
  const graph step = capture(allocator, stream);
  auto pools = allocator.get<tessera::extension::private_pools>();
  if (!pools.lend(step.memory.id())) return false;
  void* const eager = allocator.allocate(30_MiB, stream);  // the device has too little, so the pool serves
  std::printf("the graph's temporary block is %s while it is lent\n",
              eager == step.addresses[0] ? "used" : "not used");

  std::vector<void*> lent;
  const auto list = [&lent](const tessera::extension::lent_block& b) { lent.push_back(b.address); };
  const tessera::extension::taken_back missing = pools.take_back(step.memory.id(), list);
  std::printf("%zu block of %zu MiB is not back\n", missing.blocks, missing.bytes >> 20);
  for (void* const p : lent) allocator.deallocate(p);                  // or move what it holds first
  const bool is_back = pools.take_back(step.memory.id()).blocks == 0;  // the graph may be replayed
  allocator.deallocate(step.addresses[1]);
  return is_back && allocator.audit() == nullptr;
}

}  // namespace

int main() {
  if (!lend_and_take_back()) return 1;
  allocator_type allocator;
  const tessera::stream_id stream{1};
  {
    const graph step = capture(allocator, stream);
    void* const eager = allocator.allocate(30_MiB, stream);
    std::printf("the graph's temporary block is %s by other requests\n",
                eager == step.addresses[0] ? "used" : "not used");
    allocator.deallocate(eager);
    allocator.trim();
    std::printf("reserved %zu MiB while the graph lives\n", allocator.current_usage().reserved >> 20);
    allocator.deallocate(step.addresses[1]);
  }
  allocator.trim();
  std::printf("reserved %zu MiB after it\n", allocator.current_usage().reserved >> 20);
  return allocator.audit() == nullptr && allocator.current_usage().reserved == 0 ? 0 : 1;
}
