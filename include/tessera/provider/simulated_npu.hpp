// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <utility>

#include <tessera/provider/provider.hpp>
#include <tessera/provider/simulated_device.hpp>

namespace tessera {

/// A simulated_device that does as ACL does: what is mapped can be used at once, unmap looks at no size, and release does
/// not wait for work.
///
///     tessera::caching_allocator<tessera::torch_npu<"page_size:1g">, tessera::simulated_npu> npu;
///     npu.deallocate(npu.allocate(5_MiB));
///     std::printf("%zu bytes used\n", npu.device().used());
class simulated_npu : public simulated_device {
 public:
  static constexpr bool map_grants_access = true;
  static constexpr bool unmap_wants_size = false;
  static constexpr bool release_waits = false;

  using simulated_device::simulated_device;

  [[nodiscard]] simulated_npu another_process() const {
    return simulated_npu(simulated_device::another_process());
  }
  [[nodiscard]] simulated_npu another_device(const options& chosen) const {
    return simulated_npu(simulated_device::another_device(chosen));
  }
  bool map(void* p, std::size_t bytes, const physical& memory) noexcept {
    return simulated_device::map(p, bytes, memory, map_grants_access);
  }
  bool unmap(void* p, std::size_t bytes) noexcept {
    return simulated_device::unmap(p, bytes, !unmap_wants_size);
  }

 private:
  explicit simulated_npu(simulated_device&& made) : simulated_device(std::move(made)) {}
};
static_assert(sharing_provider<simulated_npu>);

}  // namespace tessera
