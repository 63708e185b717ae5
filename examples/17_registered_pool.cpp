// SPDX-License-Identifier: Apache-2.0
// A private pool with a source of its own: segments that are registered with a network, as NCCL needs them.
#include <tessera/extension/private_pools.hpp>
#include <tessera/extension/registrations.hpp>
#include <tessera/provider/adaptor.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <vector>

using namespace tessera::literals;

namespace {

using device_ref = tessera::provider::provider_ref<tessera::provider::simulated_device>;

/// Takes memory of a device, and registers it with a network. A real one calls ncclCommRegister, for example.
class registered_memory {
 public:
  explicit registered_memory(device_ref device) : device_(device) {}
  void* acquire(std::size_t bytes) noexcept {
    auto* const p = static_cast<std::byte*>(device_.acquire(bytes));
    if (p != nullptr) add(p, bytes);
    return p;
  }
  bool release(void* memory, std::size_t bytes) noexcept {
    remove(memory);
    return device_.release(memory, bytes);
  }
  /// Registers memory of another source.
  void add(void* memory, std::size_t bytes) {
    registered_.push_back({static_cast<std::byte*>(memory), bytes});
  }
  void remove(const void* memory) {
    std::erase_if(registered_, [memory](const part& each) { return each.begin == memory; });
  }
  [[nodiscard]] bool can_send(const void* p) const {
    return std::any_of(registered_.begin(), registered_.end(),
                       [p](const part& each) { return p >= each.begin && p < each.begin + each.bytes; });
  }
  [[nodiscard]] std::size_t count() const { return registered_.size(); }

 private:
  struct part {
    std::byte* begin;
    std::size_t bytes;
  };
  device_ref device_;
  std::vector<part> registered_;
};

}  // namespace

int main() {
  tessera::provider::simulated_device device;
  registered_memory network{device_ref(device)};  // outlives the allocator
  tessera::caching_allocator<tessera::recipe::pytorch<>, device_ref, tessera::extension::private_pools,
                             tessera::extension::registrations<>>
      allocator{device_ref(device)};
  const tessera::stream_id sends{1};
  tessera::extension::private_pool pool(allocator, tessera::extension::pool_upstream(network));
  const tessera::extension::pool_scope scope(pool, sends, tessera::extension::scope_kind::plain);

  void* const gradients = allocator.allocate(4_MiB, sends);
  void* const more = allocator.allocate(8_MiB, sends);  // in the same segment
  void* const weights = allocator.allocate(4_MiB);
  std::printf("%zu segment is registered; gradients %s, weights %s be sent without a copy\n", network.count(),
              network.can_send(gradients) ? "can" : "cannot", network.can_send(weights) ? "can" : "cannot");

  // A block of any pool can be registered, too. Then the extension keeps its segment, also after the free of the block.
  bool is_right = network.count() == 1 && network.can_send(gradients) && !network.can_send(weights);
  auto registrations = allocator.get<tessera::extension::registrations<>>();
  if (!registrations.register_memory(weights, 4_MiB)) return 1;
  network.add(weights, 4_MiB);
  for (void* const p : {gradients, more, weights}) allocator.deallocate(p);
  allocator.trim();
  const std::size_t kept = allocator.current_usage().reserved;
  network.remove(weights);
  if (!registrations.deregister_memory(weights, 4_MiB)) return 1;
  allocator.trim();
  const std::size_t released = kept - allocator.current_usage().reserved;
  std::printf("trim released the segment of %zu MiB only after the weights were deregistered\n",
              released >> 20);
  is_right = is_right && released == 20_MiB;
  return is_right && allocator.audit() == nullptr ? 0 : 1;
}
