// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <utility>

#include <tessera/core/page.hpp>
#include <tessera/detail/containers/pagemap.hpp>
#include <tessera/provider/adaptor.hpp>
#include <tessera/provider/capabilities.hpp>
#include <tessera/provider/provider.hpp>

namespace tessera::detail {

/// Registers a provider's segments, ranges and mappings in a pagemap under one owner while they exist.
///   Requires:  the provider and the pagemap outlive it
template <provider::device_provider Device>
class indexed : public provider::provider_adaptor<Device> {
 public:
  using typename provider::provider_adaptor<Device>::physical;
  static constexpr bool is_thread_safe = detail::is_thread_safe<Device>;

  indexed(Device& device, pagemap& map, pagemap::owner_number owner) noexcept
      : provider::provider_adaptor<Device>(device), map_(&map), owner_(owner) {}

  template <std::same_as<page_kind>... Kind>
    requires acquires_with<Device, Kind...>
  [[nodiscard]] void* acquire(std::size_t bytes, Kind... kind) noexcept {
    void* const segment = this->inner().acquire(bytes, kind...);
    if (segment == nullptr || map_->add(segment, bytes, owner_)) return segment;
    (void)this->inner().release(segment, bytes);
    return nullptr;
  }
  bool release(void* p, std::size_t bytes) noexcept {
    return erase_while(p, [&] { return this->inner().release(p, bytes); });
  }

  [[nodiscard]] void* reserve(std::size_t bytes, std::size_t alignment) noexcept
    requires provider::virtual_memory_provider<Device>
  {
    void* const range = this->inner().reserve(bytes, alignment);
    if (range == nullptr || map_->add_reserved(range, bytes, owner_)) return range;
    (void)this->inner().unreserve(range, bytes);
    return nullptr;
  }
  bool unreserve(void* p, std::size_t bytes) noexcept
    requires provider::virtual_memory_provider<Device>
  {
    map_->remove_reserved(p);
    if (this->inner().unreserve(p, bytes)) return true;
    // Without host memory for the entry, blocks are still found while their memory is mapped.
    (void)map_->add_reserved(p, bytes, owner_);
    return false;
  }

  bool map(void* p, std::size_t bytes, const physical& memory) noexcept
    requires provider::virtual_memory_provider<Device>
  {
    if (!map_->add(p, bytes, owner_)) return false;
    if (this->inner().map(p, bytes, memory)) return true;
    map_->forget(map_->take_out(p));
    return false;
  }
  bool unmap(void* p, std::size_t bytes) noexcept
    requires provider::virtual_memory_provider<Device>
  {
    return erase_while(p, [&] { return this->inner().unmap(p, bytes); });
  }

 private:
  /// Erases the entry before the call: afterwards the device may give the addresses to another owner.
  template <typename F>
  [[nodiscard]] bool erase_while(void* p, F make_call) noexcept {
    pagemap::taken entry = map_->take_out(p);
    const bool released = make_call();
    if (released) {
      map_->forget(std::move(entry));
    } else {
      map_->put_back(std::move(entry));
    }
    return released;
  }

  pagemap* map_;
  pagemap::owner_number owner_;
};

}  // namespace tessera::detail
