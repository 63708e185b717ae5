// SPDX-License-Identifier: Apache-2.0
// A private pool with a source of its own: segments that are registered with a network, as NCCL needs them.
#include <tessera/extension/private_pools.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <vector>

using namespace tessera::literals;

namespace {

/// Takes memory of a device, and registers it with a network. A real one calls ncclCommRegister, for example.
class registered_memory {
 public:
  void* acquire(std::size_t bytes) noexcept {
    auto* const p = static_cast<std::byte*>(device_.acquire(bytes));
    if (p != nullptr) registered_.push_back({p, bytes});
    return p;
  }
  bool release(void* memory, std::size_t bytes) noexcept {
    std::erase_if(registered_, [memory](const part& each) { return each.begin == memory; });
    return device_.release(memory, bytes);
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
  tessera::provider::simulated_device device_;
  std::vector<part> registered_;
};

}  // namespace

int main() {
  registered_memory network;  // outlives the allocator
  tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device,
                             tessera::extension::private_pools>
      allocator;
  const tessera::stream_id sends{1};
  tessera::extension::private_pool pool(allocator, tessera::extension::pool_upstream(network));
  const tessera::extension::pool_scope scope(pool, sends, tessera::extension::scope_kind::plain);

  void* const gradients = allocator.allocate(4_MiB, sends);
  void* const more = allocator.allocate(8_MiB, sends);  // in the same segment
  void* const weights = allocator.allocate(4_MiB);
  std::printf("%zu segment is registered; gradients %s, weights %s be sent without a copy\n", network.count(),
              network.can_send(gradients) ? "can" : "cannot", network.can_send(weights) ? "can" : "cannot");
  for (void* const p : {gradients, more, weights}) allocator.deallocate(p);
  return network.count() == 1 && allocator.audit() == nullptr ? 0 : 1;
}
