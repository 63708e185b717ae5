// SPDX-License-Identifier: Apache-2.0
// C++ containers in page-locked host memory: std::pmr, a typed allocator, and a unique_block that a stream uses.
#include <cstdint>
#include <cstdio>
#include <list>
#include <map>
#include <memory_resource>
#include <numeric>
#include <vector>

#include <tessera/concurrent/locked.hpp>
#include <tessera/interop/ownership.hpp>
#include <tessera/interop/std_allocators.hpp>
#include <tessera/provider/adaptor.hpp>
#include <tessera/provider/host_pinned.hpp>
#include <tessera/tessera.hpp>

using namespace tessera::literals;
using device_type = tessera::provider::host_pinned;
using allocator_type = tessera::concurrent::locked<
    tessera::caching_allocator<tessera::recipe::pinned_packed, tessera::provider::provider_ref<device_type>>>;

// Some libraries default construct their allocators, so these take their memory from a function.
std::pmr::memory_resource& node_memory() {
  // Never destroyed, because static containers may use them.
  static auto* const device = new device_type({.pin = device_type::pinning::where_allowed});
  static auto* const allocator = new allocator_type{tessera::provider::provider_ref(*device)};
  static auto* const blocks = new tessera::interop::pmr_resource(*allocator);
  static auto* const nodes = new std::pmr::synchronized_pool_resource(blocks);
  return *nodes;
}
template <typename T>
using node_allocator = tessera::interop::typed_allocator<T, tessera::interop::allocator_from<node_memory>>;

int main() {
  device_type device{{.capacity = 64_MiB, .pin = device_type::pinning::where_allowed}};
  allocator_type allocator{tessera::provider::provider_ref(device)};

  // A memory resource. The type of the container does not depend on where its memory is.
  tessera::interop::pmr_resource memory(allocator);
  std::pmr::vector<float> batch(1000, 1.0f, &memory);

  // A block has at least 512 bytes. A pool of the standard library splits blocks into small nodes.
  std::pmr::unsynchronized_pool_resource nodes(&memory);
  std::pmr::map<int, float> by_number(&nodes);
  for (int i = 0; i < 1000; ++i) by_number.emplace(i, 1.0f);

  std::list<int, node_allocator<int>> numbers(1000, 1);

  // A C++ allocator. The type of the container names where its memory is.
  using floats = tessera::interop::typed_allocator<float, allocator_type>;
  std::vector<float, floats> result(batch.size(), floats(allocator));

  const tessera::stream_id stream = device.create_stream();
  {
    tessera::interop::unique_block scratch =
        tessera::interop::make_block(allocator, batch.size() * sizeof(float), stream);
    auto* const doubled = static_cast<float*>(scratch.get());
    device.submit(stream, [&batch, doubled] {
      for (std::size_t i = 0; i < batch.size(); ++i) doubled[i] = 2 * batch[i];
    });
    device.submit(stream, [&result, doubled] {
      for (std::size_t i = 0; i < result.size(); ++i) result[i] = doubled[i];
    });
    // The block is deallocated here. Its memory is reused once the work of the stream completes.
    if (!scratch.record_stream(stream)) device.synchronize(stream);
  }
  device.synchronize(stream);

  const float sum = std::accumulate(result.begin(), result.end(), 0.0f);
  std::printf("sum %.0f, live %zu bytes of %zu reserved\n", static_cast<double>(sum),
              allocator.current_usage().allocated, allocator.current_usage().reserved);
  return sum == 2000 && allocator.audit() == nullptr ? 0 : 1;
}
