// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <cstring>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include <tessera/core/bytes.hpp>
#include <tessera/core/fatal.hpp>
#include <tessera/core/page.hpp>
#include <tessera/debug/checked_events.hpp>
#include <tessera/debug/provider_books.hpp>
#include <tessera/provider/forwarding.hpp>
#include <tessera/provider/host_system.hpp>
#include <tessera/provider/provider.hpp>

namespace tessera {

/// Owns a provider, hands its calls on, and ends the program with the broken rule in words where an answer cannot be: the
/// checked mode of an allocator is that it is made over this.
///
///     #include <tessera/debug/checked_provider.hpp>
///     using checked = tessera::checked_provider<tessera::simulated_device>;
///     tessera::caching_allocator<tessera::pytorch<>, checked> watched;
///     watched.deallocate(watched.allocate(5_MiB));
///
/// It finds memory that is misplaced, overlaps what was given before, goes past the capacity or the end of all addresses,
/// or at an end of which the host cannot read what it should; physical memory whose name is none or another's, and maps
/// outside of ranges or over others; calls that say they worked where there was nothing to do; events that are ready
/// before the work before them is done, where the order of streams tells, or before earlier ones, or no more, unless the
/// provider may_see_late; sizes that change or make no sense. A refusal is an answer, whatever the reason, and is handed
/// on. What no answer shows is for the laws [tessera/law/provider.hpp]: memory that is mapped elsewhere and that the host
/// does not see, or too little of it, and what is never to be had again.
///
/// Names of physical memory that have padding are not compared, and what is mapped is then not checked. Several threads may
/// use it where they may use the provider; no lock is held while that is called.
///   Cost:  logarithmic in what is given, for each call about memory; two ticks and a look-up for each about events, a
///          position for each record
template <device_provider Device>
class checked_provider : public checked_events<Device> {
  static constexpr bool knows_names = [] {
    if constexpr (requires { typename Device::physical; })
      return std::has_unique_object_representations_v<typename Device::physical>;
    else
      return false;
  }();

 public:
  using typename forwarding<Device>::physical;
  using typename forwarding<Device>::shareable;
  static constexpr bool is_thread_safe = tessera::is_thread_safe<Device>;

  checked_provider() : checked_provider(Device{}) {}
  explicit checked_provider(Device device)
      : checked_provider(std::make_unique<possession>(std::move(device))) {}

  template <std::same_as<page_kind>... Kind>
    requires requires(Device& d, std::size_t bytes, Kind... kind) { d.acquire(bytes, kind...); }
  [[nodiscard]] void* acquire(std::size_t bytes, Kind... kind) noexcept {
    void* const given = this->to().acquire(bytes, kind...);
    if (given == nullptr) return nullptr;
    this->books().gave_segment(given, bytes);
    is_readable(given, bytes, "checked_provider: acquire gave memory that the host cannot read");
    return given;
  }
  bool release(void* p, std::size_t bytes) noexcept {
    const auto going = this->books().goes(p);
    const bool gone = this->to().release(p, bytes);
    if (!gone) this->books().stays(p, going);
    return gone;
  }
  [[nodiscard]] std::size_t capacity() const noexcept {
    const std::size_t said = this->to().capacity();
    return this->books().is_still(said, this->to().granularity()), said;
  }
  [[nodiscard]] std::size_t granularity() const noexcept {
    const std::size_t said = this->to().granularity();
    return this->books().is_still(this->to().capacity(), said), said;
  }
  [[nodiscard]] std::size_t available() const noexcept
    requires measured_provider<Device>
  {
    const std::size_t said = this->to().available();
    return this->books().said_available(said), said;
  }

  [[nodiscard]] std::size_t step(page_kind kind) const noexcept
    requires virtual_memory_provider<Device>
  {
    const std::size_t said = this->to().step(kind);
    if (!is_power_of_two(said) || said % kind.step() != 0)
      fatal("checked_provider: a step is no power of two, or no multiple of the page's size");
    return said;
  }
  [[nodiscard]] void* reserve(std::size_t bytes, std::size_t to) noexcept
    requires virtual_memory_provider<Device>
  {
    void* const given = this->to().reserve(bytes, to);
    if (given != nullptr) this->books().gave_range(given, bytes, to);
    return given;
  }
  bool unreserve(void* p, std::size_t bytes) noexcept
    requires virtual_memory_provider<Device>
  {
    const auto going = this->books().goes(p);
    const bool gone = this->to().unreserve(p, bytes);
    gone ? this->books().took_range(p, going) : this->books().stays(p, going);
    return gone;
  }
  bool create(std::size_t bytes, page_kind kind, physical& memory) noexcept
    requires virtual_memory_provider<Device>
  {
    const bool made = this->to().create(bytes, kind, memory);
    if constexpr (knows_names) {
      if (made) this->books().named(name_of(memory), name_of(physical{}), bytes, step(kind));
    }
    return made;
  }
  bool destroy(const physical& memory) noexcept
    requires virtual_memory_provider<Device>
  {
    if constexpr (knows_names) {
      const std::string name = name_of(memory);
      const auto going = this->books().goes(name);
      const bool gone = this->to().destroy(memory);
      gone ? this->books().destroyed(going) : this->books().stays(name, going);
      return gone;
    } else {
      return this->to().destroy(memory);
    }
  }
  bool map(void* p, std::size_t bytes, const physical& memory) noexcept
    requires virtual_memory_provider<Device>
  {
    const char* no_map = nullptr;
    if constexpr (knows_names) no_map = this->books().why_no_map(p, bytes, name_of(memory));
    if (!this->to().map(p, bytes, memory)) return false;
    if (no_map != nullptr) fatal(no_map, p);
    if constexpr (knows_names) this->books().mapped(p, bytes);
    if constexpr (Device::map_grants_access)
      is_readable(p, bytes, "checked_provider: map put memory where the host cannot read it");
    return true;
  }
  bool grant(void* p, std::size_t bytes) noexcept
    requires virtual_memory_provider<Device>
  {
    const bool is_there = !knows_names || this->books().is_mapped(p);
    if (!this->to().grant(p, bytes)) return false;
    if (!is_there) fatal("checked_provider: grant gave access where nothing is mapped", p);
    is_readable(p, bytes, "checked_provider: grant gave the host no access");
    return true;
  }
  bool unmap(void* p, std::size_t bytes) noexcept
    requires virtual_memory_provider<Device>
  {
    const auto going = this->books().unmaps(p);
    const bool gone = this->to().unmap(p, bytes);
    if constexpr (knows_names) gone ? this->books().unmapped(p, going) : this->books().still_mapped(p, going);
    return gone;
  }
  bool import_memory(const shareable& name, physical& memory) noexcept
    requires sharing_provider<Device>
  {
    const bool there = this->to().import_memory(name, memory);
    if constexpr (knows_names) {
      if (there) this->books().named(name_of(memory), name_of(physical{}), 0, 1);
    }
    return there;
  }
  bool register_memory(void* p, std::size_t bytes) noexcept
    requires registering_provider<Device>
  {
    const bool there = this->to().register_memory(p, bytes);
    if (there) this->books().registered(p, bytes);
    return there;
  }
  bool unregister_memory(void* p) noexcept
    requires registering_provider<Device>
  {
    const auto going = this->books().unregisters(p);
    const bool gone = this->to().unregister_memory(p);
    if (!gone) this->books().still_registered(p, going);
    return gone;
  }

 private:
  struct possession {
    explicit possession(Device given)
        : device(std::move(given)), books(device.capacity(), device.granularity()) {}
    Device device;
    provider_books books;
  };
  explicit checked_provider(std::unique_ptr<possession> own)
      : checked_events<Device>(own->device, own->books), own_(std::move(own)) {}

  [[nodiscard]] static std::string name_of(const physical& memory) {
    std::string name(sizeof memory, '\0');
    std::memcpy(name.data(), &memory, sizeof memory);
    return name;
  }
  static void is_readable(const void* p, std::size_t bytes, const char* else_broken) noexcept {
    if constexpr (tessera::is_host_visible<Device>) {
      if (!host_can_read(p) || !host_can_read(static_cast<const char*>(p) + bytes - 1)) fatal(else_broken, p);
    }
  }

  std::unique_ptr<possession> own_;
};

}  // namespace tessera
