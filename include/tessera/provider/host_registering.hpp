// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/provider/adaptor.hpp>

namespace tessera::inline v0_1::provider {

/// Acquires segments from one provider and registers them with another. It makes ordinary host memory
/// accessible to a device.
///
/// It has the streams and events of the device. Mapped memory is not registered, so there is no virtual
/// memory.
///
/// If a segment can be neither released nor registered again, it counts as released, and its provider keeps
/// it. So no caller gets memory that the device cannot access.
///
///     #include <tessera/provider/host_pinned.hpp>
///     using tessera::provider::host_pinned;
///     host_pinned memory({.pin = host_pinned::pinning::never}), device;
///     using provider = tessera::provider::host_registering<host_pinned, host_pinned>;
///     tessera::caching_allocator<tessera::recipe::pytorch_pinned<>, provider> pinned{provider(memory, device)};
///
///   Requires:  both providers outlive it
///   Source:  PyTorch's pinned_use_cuda_host_register and torch_npu's pinned_mem_register
template <device_provider Memory, registering_provider Device>
class host_registering : public provider_adaptor<Device> {
 public:
  static constexpr bool is_thread_safe = detail::is_thread_safe<Memory> && detail::is_thread_safe<Device>;
  static constexpr bool is_host_visible = detail::is_host_visible<Memory>;

  /// Takes segments from the first provider, and everything else from the second.
  host_registering(Memory& memory, Device& device) noexcept
      : provider_adaptor<Device>(device), memory_(&memory) {}

  template <std::same_as<page_kind>... Kind>
    requires detail::acquires_with<Memory, Kind...>
  [[nodiscard]] void* acquire(std::size_t bytes, Kind... kind) noexcept {
    void* const segment = memory_->acquire(bytes, kind...);
    if (segment == nullptr || this->inner().register_memory(segment, bytes)) return segment;
    (void)memory_->release(segment, bytes);
    return nullptr;
  }
  bool release(void* p, std::size_t bytes) noexcept {
    if (!this->inner().unregister_memory(p)) return false;
    return memory_->release(p, bytes) || !this->inner().register_memory(p, bytes);
  }
  [[nodiscard]] std::size_t capacity() const noexcept { return memory_->capacity(); }
  [[nodiscard]] std::size_t granularity() const noexcept { return memory_->granularity(); }
  [[nodiscard]] std::size_t available() const noexcept
    requires detail::measured_provider<Memory>
  {
    return memory_->available();
  }
  [[nodiscard]] bool would_exceed_limit(std::size_t bytes) const noexcept
    requires detail::limited_provider<Memory>
  {
    return memory_->would_exceed_limit(bytes);
  }
  [[nodiscard]] refusal explain_limit(std::size_t bytes) const noexcept
    requires detail::limit_explaining_provider<Memory>
  {
    return memory_->explain_limit(bytes);
  }
  refusal take_refusal() noexcept
    requires(detail::explaining_provider<Memory> || detail::explaining_provider<Device>)
  {
    const refusal of_memory = detail::take_refusal(*memory_);
    const refusal of_device = detail::take_refusal(this->inner());
    return of_memory ? of_memory : of_device;
  }
  struct physical {};  // hides the device's virtual memory
  // The device does not copy from or to host memory as if it were its own.
  void copy_to_host(void* to, const void* from, std::size_t bytes, stream_id stream) = delete;
  void copy_to_device(void* to, const void* from, std::size_t bytes, stream_id stream) = delete;

 private:
  Memory* memory_;
};

}  // namespace tessera::inline v0_1::provider
