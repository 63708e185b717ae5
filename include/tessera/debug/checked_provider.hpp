// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include <tessera/core/bytes.hpp>
#include <tessera/core/fatal.hpp>
#include <tessera/core/page.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/debug/provider_shadow.hpp>
#include <tessera/provider/adaptor.hpp>
#include <tessera/provider/host_system.hpp>
#include <tessera/provider/provider.hpp>

namespace tessera::detail {

/// An event of a device, and the state when it was recorded.
template <typename Device>
struct checked_event {};
template <typename Device>
  requires requires { typename Device::event; }
struct checked_event<Device> {
  typename Device::event mark{};
  stream_id stream{};
  std::uint64_t position = 0;          ///< position of the stream; 0 without ordering
  std::uint64_t begun = 0, ended = 0;  ///< the ticks around record(); 0 if it was never recorded
  bool was_ready = false;
};

/// Checks events and the order of streams, for checked_provider.
template <device_provider Device>
class checked_events : public provider_adaptor<Device> {
 public:
  using event = checked_event<Device>;

  ///   Requires:  the provider and the shadow state outlive it
  checked_events(Device& to, provider_shadow& shadow) noexcept
      : provider_adaptor<Device>(to), shadow_(&shadow) {}

  bool record(stream_id stream, event& made) noexcept
    requires event_provider<Device>
  {
    event recorded{.stream = stream, .position = position_of(stream), .begun = shadow().tick()};
    if (!this->inner().record(stream, recorded.mark)) return false;
    recorded.ended = shadow().tick();
    made = recorded;
    return true;
  }
  [[nodiscard]] bool query(event& made) noexcept
    requires event_provider<Device>
  {
    const std::uint64_t done = shadow().done_before(made.stream);
    const bool ready = this->inner().query(made.mark);
    if (ready) {
      require_ready(
          made,
          "checked_provider: query says of an event that it is ready before the work before it is done");
    } else if (detail::may_see_late<Device>) {
      return false;
    } else if (made.was_ready) {
      detail::fatal("checked_provider: query says of an event that was ready that it is not");
    } else if (made.ended != 0 && made.ended < done) {
      detail::fatal("checked_provider: query says of an event that it is not ready where a later one was");
    }
    return ready;
  }
  bool wait(event& made) noexcept
    requires event_provider<Device>
  {
    if (!this->inner().wait(made.mark)) return false;
    require_ready(made, "checked_provider: wait returns before the work before an event is done");
    return true;
  }
  void discard(event& made) noexcept
    requires event_provider<Device>
  {
    this->inner().discard(made.mark);
  }
  [[nodiscard]] bool is_done(stream_id stream, std::uint64_t at) noexcept
    requires ordering_provider<Device>
  {
    const bool done = this->inner().is_done(stream, at);
    if (!done && at == 0) detail::fatal("checked_provider: is_done says that the position 0 is not done");
    return done;
  }
  [[nodiscard]] bool is_ordered_after(stream_id stream, stream_id of, std::uint64_t at) noexcept
    requires ordering_provider<Device>
  {
    const bool behind = this->inner().is_ordered_after(stream, of, at);
    if (!behind && (at == 0 || stream == of))
      detail::fatal(
          "checked_provider: is_ordered_after says that a stream is not behind its own work, or none");
    return behind;
  }
  bool make_wait(stream_id stream, stream_id of, std::uint64_t at) noexcept
    requires ordering_provider<Device>
  {
    const bool waits = this->inner().make_wait(stream, of, at);
    if (waits && !this->inner().is_ordered_after(stream, of, at) && !this->inner().is_done(of, at))
      detail::fatal("checked_provider: make_wait says that a stream waits, which is not behind");
    return waits;
  }

  bool synchronize(stream_id stream) noexcept
    requires requires(Device& d) { d.synchronize(stream); }
  {
    const std::uint64_t position = position_of(stream), begun = shadow().tick();
    if (!this->inner().synchronize(stream)) return false;
    require_past(stream, position,
                 "checked_provider: synchronize returns before the work of a stream is done");
    shadow().is_done_before(stream, begun);
    return true;
  }

 protected:
  [[nodiscard]] provider_shadow& shadow() const noexcept { return *shadow_; }

 private:
  static constexpr bool knows_order = ordering_provider<Device> && !detail::may_see_late<Device>;

  [[nodiscard]] std::uint64_t position_of(stream_id stream) noexcept {
    if constexpr (knows_order) return this->inner().position(stream);
    return 0;
  }
  /// Aborts if the work up to `position` is not done. A stream below that position is no error: its handle
  /// was reused for a new stream.
  void require_past(stream_id stream, std::uint64_t position, const char* violation) noexcept {
    if constexpr (knows_order) {
      if (!this->inner().is_done(stream, position) && this->inner().position(stream) >= position)
        detail::fatal(violation);
    }
  }
  void require_ready(event& made, const char* violation) noexcept {
    require_past(made.stream, made.position, violation);
    shadow().is_done_before(made.stream, made.begun);
    made.was_ready = true;
  }

  provider_shadow* shadow_;
};

}  // namespace tessera::detail

namespace tessera {

/// Owns a provider, forwards its calls, and aborts when the provider violates its contract. Use it under an
/// allocator to check the provider and the allocator.
///
///     #include <tessera/debug/checked_provider.hpp>
///     using checked = tessera::checked_provider<tessera::simulated_device>;
///     tessera::caching_allocator<tessera::pytorch<>, checked> pool_over_checked;
///     pool_over_checked.deallocate(pool_over_checked.allocate(5_MiB));
///
/// It checks:
/// * segments and ranges: alignment, overlap, capacity, the end of the address space
/// * host-visible memory: the host can read both ends
/// * physical memory: empty or reused handles; maps outside of ranges or over other maps
/// * calls that report success although they had no effect
/// * events: ready too early, after a later event, or no longer ready; not if the provider declares may_see_late
/// * capacity, granularity and page size: constant and valid
///
/// A failed call is always valid, and the failure is returned. Some errors do not show in a single answer:
/// memory that is mapped elsewhere or too short, and memory that never becomes reusable. The laws
/// [tessera/law/provider.hpp] find them.
///
/// If D::physical has padding bytes, handles are not compared and their maps are not checked. It is
/// thread-safe if the provider is. It holds no lock during the provider's calls.
///   Cost:  logarithmic in the segments, ranges and maps for each call about memory; two ticks and a look-up
///          for each call about events; a position for each record
template <device_provider Device>
class checked_provider : public detail::checked_events<Device> {
  static constexpr bool knows_names = [] {
    if constexpr (requires { typename Device::physical; })
      return std::has_unique_object_representations_v<typename Device::physical>;
    else
      return false;
  }();

 public:
  using typename provider_adaptor<Device>::physical;
  using typename provider_adaptor<Device>::shareable;
  static constexpr bool is_thread_safe = detail::is_thread_safe<Device>;

  checked_provider() : checked_provider(Device{}) {}
  explicit checked_provider(Device device)
      : checked_provider(std::make_unique<owned_device>(std::move(device))) {}

  template <std::same_as<page_kind>... Kind>
    requires requires(Device& d, std::size_t bytes, Kind... kind) { d.acquire(bytes, kind...); }
  [[nodiscard]] void* acquire(std::size_t bytes, Kind... kind) noexcept {
    void* const given = this->inner().acquire(bytes, kind...);
    if (given == nullptr) return nullptr;
    this->shadow().gave_segment(given, bytes);
    require_readable(given, bytes, "checked_provider: acquire gave memory that the host cannot read");
    return given;
  }
  bool release(void* p, std::size_t bytes) noexcept {
    const auto going = this->shadow().goes(p);
    const bool gone = this->inner().release(p, bytes);
    if (!gone) this->shadow().stays(p, going);
    return gone;
  }
  [[nodiscard]] std::size_t capacity() const noexcept {
    const std::size_t result = this->inner().capacity();
    this->shadow().require_constant(result, this->inner().granularity());
    return result;
  }
  [[nodiscard]] std::size_t granularity() const noexcept {
    const std::size_t result = this->inner().granularity();
    this->shadow().require_constant(this->inner().capacity(), result);
    return result;
  }
  [[nodiscard]] std::size_t available() const noexcept
    requires detail::measured_provider<Device>
  {
    const std::size_t result = this->inner().available();
    this->shadow().require_plausible(result);
    return result;
  }

  [[nodiscard]] std::size_t page_size(page_kind kind) const noexcept
    requires virtual_memory_provider<Device>
  {
    const std::size_t result = this->inner().page_size(kind);
    if (!std::has_single_bit(result) || result % kind.granularity() != 0)
      detail::fatal(
          "checked_provider: page_size is no power of two, or no multiple of the kind's granularity");
    return result;
  }
  [[nodiscard]] void* reserve(std::size_t bytes, std::size_t to) noexcept
    requires virtual_memory_provider<Device>
  {
    void* const given = this->inner().reserve(bytes, to);
    if (given != nullptr) this->shadow().gave_range(given, bytes, to);
    return given;
  }
  bool unreserve(void* p, std::size_t bytes) noexcept
    requires virtual_memory_provider<Device>
  {
    const auto going = this->shadow().goes(p);
    const bool gone = this->inner().unreserve(p, bytes);
    if (gone) {
      this->shadow().took_range(p, going);
    } else {
      this->shadow().stays(p, going);
    }
    return gone;
  }
  bool create(std::size_t bytes, page_kind kind, physical& memory) noexcept
    requires virtual_memory_provider<Device>
  {
    const bool made = this->inner().create(bytes, kind, memory);
    if constexpr (knows_names) {
      if (made) this->shadow().named(name_of(memory), name_of(physical{}), bytes, page_size(kind));
    }
    return made;
  }
  bool destroy(const physical& memory) noexcept
    requires virtual_memory_provider<Device>
  {
    if constexpr (knows_names) {
      const std::string name = name_of(memory);
      const auto going = this->shadow().goes(name);
      const bool gone = this->inner().destroy(memory);
      if (gone) {
        this->shadow().destroyed(going);
      } else {
        this->shadow().stays(name, going);
      }
      return gone;
    } else {
      return this->inner().destroy(memory);
    }
  }
  bool map(void* p, std::size_t bytes, const physical& memory) noexcept
    requires virtual_memory_provider<Device>
  {
    const char* no_map = nullptr;
    if constexpr (knows_names) no_map = this->shadow().why_no_map(p, bytes, name_of(memory));
    if (!this->inner().map(p, bytes, memory)) return false;
    if (no_map != nullptr) detail::fatal(no_map, p);
    if constexpr (knows_names) this->shadow().mapped(p, bytes);
    if constexpr (Device::map_grants_access)
      require_readable(p, bytes, "checked_provider: map put memory where the host cannot read it");
    return true;
  }
  bool grant(void* p, std::size_t bytes) noexcept
    requires virtual_memory_provider<Device>
  {
    const bool is_there = !knows_names || this->shadow().is_mapped(p);
    if (!this->inner().grant(p, bytes)) return false;
    if (!is_there) detail::fatal("checked_provider: grant gave access where nothing is mapped", p);
    require_readable(p, bytes, "checked_provider: grant gave the host no access");
    return true;
  }
  bool unmap(void* p, std::size_t bytes) noexcept
    requires virtual_memory_provider<Device>
  {
    const auto going = this->shadow().unmaps(p);
    const bool gone = this->inner().unmap(p, bytes);
    if constexpr (knows_names) {
      if (gone) {
        this->shadow().unmapped(p, going);
      } else {
        this->shadow().still_mapped(p, going);
      }
    }
    return gone;
  }
  bool import_memory(const shareable& name, physical& memory) noexcept
    requires sharing_provider<Device>
  {
    const bool there = this->inner().import_memory(name, memory);
    if constexpr (knows_names) {
      if (there) this->shadow().named(name_of(memory), name_of(physical{}), 0, 1);
    }
    return there;
  }
  bool register_memory(void* p, std::size_t bytes) noexcept
    requires registering_provider<Device>
  {
    const bool there = this->inner().register_memory(p, bytes);
    if (there) this->shadow().registered(p, bytes);
    return there;
  }
  bool unregister_memory(void* p) noexcept
    requires registering_provider<Device>
  {
    const auto going = this->shadow().unregisters(p);
    const bool gone = this->inner().unregister_memory(p);
    if (!gone) this->shadow().still_registered(p, going);
    return gone;
  }

 private:
  struct owned_device {
    explicit owned_device(Device given)
        : device(std::move(given)), shadow(device.capacity(), device.granularity()) {}
    Device device;
    detail::provider_shadow shadow;
  };
  explicit checked_provider(std::unique_ptr<owned_device> own)
      : detail::checked_events<Device>(own->device, own->shadow), own_(std::move(own)) {}

  [[nodiscard]] static std::string name_of(const physical& memory) {
    std::string name(sizeof memory, '\0');
    std::memcpy(name.data(), &memory, sizeof memory);
    return name;
  }
  static void require_readable(const void* p, std::size_t bytes, const char* violation) noexcept {
    if constexpr (detail::is_host_visible<Device>) {
      if (!detail::host_can_read(p) || !detail::host_can_read(static_cast<const char*>(p) + bytes - 1))
        detail::fatal(violation, p);
    }
  }

  std::unique_ptr<owned_device> own_;
};

}  // namespace tessera
