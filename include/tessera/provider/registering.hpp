// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>

#include <tessera/core/page.hpp>
#include <tessera/provider/forwarding.hpp>
#include <tessera/provider/provider.hpp>

namespace tessera {

/// A provider whose segments are memory of one provider, registered with another one, as long as they are given: ordinary
/// memory of the host that a device reaches. Its streams are those of that device. As what is mapped is not registered, it
/// has no virtual memory.
///
/// Where memory that was unregistered can be neither released nor registered again, it counts as released and stays
/// with its provider, so that nobody is handed memory that the device does not reach.
///
///     #include <tessera/provider/host_pinned.hpp>
///     using tessera::host_pinned;
///     host_pinned memory({.pin = host_pinned::pinning::never}), device;
///     using registered = tessera::registering<host_pinned, host_pinned>;
///     tessera::caching_allocator<tessera::pytorch_pinned<>, registered> pinned{registered(memory, device)};
///
///   Requires:  both providers outlive it
///   Source:  PyTorch's pinned_use_cuda_host_register and torch_npu's pinned_mem_register
template <device_provider Memory, registering_provider Device>
class registering : public forwarding<Device> {
 public:
  static constexpr bool is_thread_safe = tessera::is_thread_safe<Memory> && tessera::is_thread_safe<Device>;
  static constexpr bool is_host_visible = tessera::is_host_visible<Memory>;

  registering(Memory& memory, Device& device) noexcept : forwarding<Device>(device), memory_(&memory) {}

  template <std::same_as<page_kind>... Kind>
    requires requires(Memory& m, std::size_t bytes, Kind... kind) { m.acquire(bytes, kind...); }
  [[nodiscard]] void* acquire(std::size_t bytes, Kind... kind) noexcept {
    void* const given = memory_->acquire(bytes, kind...);
    if (given == nullptr || this->to().register_memory(given, bytes)) return given;
    (void)memory_->release(given, bytes);
    return nullptr;
  }
  bool release(void* p, std::size_t bytes) noexcept {
    if (!this->to().unregister_memory(p)) return false;
    return memory_->release(p, bytes) || !this->to().register_memory(p, bytes);
  }
  [[nodiscard]] std::size_t capacity() const noexcept { return memory_->capacity(); }
  [[nodiscard]] std::size_t granularity() const noexcept { return memory_->granularity(); }
  [[nodiscard]] std::size_t available() const noexcept
    requires measured_provider<Memory>
  {
    return memory_->available();
  }
  [[nodiscard]] bool over_limit(std::size_t bytes) const noexcept
    requires limited_provider<Memory>
  {
    return memory_->over_limit(bytes);
  }
  void reserve(std::size_t bytes, std::size_t to) = delete;

 private:
  Memory* memory_;
};

}  // namespace tessera
