// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>

#include <tessera/core/page.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/provider/provider.hpp>

namespace tessera {

/// Stands for a type that a provider does not have.
struct not_there {
  bool operator==(const not_there&) const = default;
};

template <typename Device>
struct event_of {
  using type = not_there;
};
template <typename Device>
  requires requires { typename Device::event; }
struct event_of<Device> {
  using type = typename Device::event;
};

/// What a virtual_memory_provider says of itself.
template <typename Device>
struct virtual_memory_of {
  using physical = not_there;
};
template <typename Device>
  requires requires {
    typename Device::physical;
    Device::map_grants_access;
    Device::unmap_wants_size;
  }
struct virtual_memory_of<Device> {
  using physical = typename Device::physical;
  static constexpr bool map_grants_access = Device::map_grants_access;
  static constexpr bool unmap_wants_size = Device::unmap_wants_size;
};

template <typename Device>
struct shareable_of {
  using type = not_there;
};
template <typename Device>
  requires requires { typename Device::shareable; }
struct shareable_of<Device> {
  using type = typename Device::shareable;
};

/// Hands a provider's calls on to another one that lives longer; a derived class writes what differs over them.
template <typename Device>
class forwarding : public virtual_memory_of<Device> {
 public:
  using event = typename event_of<Device>::type;
  using typename virtual_memory_of<Device>::physical;
  using shareable = typename shareable_of<Device>::type;
  static constexpr bool is_host_visible = tessera::is_host_visible<Device>;
  static constexpr bool release_waits = tessera::release_waits<Device>;
  static constexpr bool may_see_late = tessera::may_see_late<Device>;

  explicit forwarding(Device& to) noexcept : to_(&to) {}

  template <std::same_as<page_kind>... Kind>
    requires requires(Device& d, std::size_t bytes, Kind... kind) { d.acquire(bytes, kind...); }
  [[nodiscard]] void* acquire(std::size_t bytes, Kind... kind) noexcept {
    return to_->acquire(bytes, kind...);
  }
  bool release(void* p, std::size_t bytes) noexcept { return to_->release(p, bytes); }
  [[nodiscard]] std::size_t capacity() const noexcept { return to_->capacity(); }
  [[nodiscard]] std::size_t granularity() const noexcept { return to_->granularity(); }
  [[nodiscard]] std::size_t available() const noexcept
    requires requires(const Device& d) { d.available(); }
  {
    return to_->available();
  }

  [[nodiscard]] bool over_limit(std::size_t bytes) const noexcept
    requires requires(const Device& d) { d.over_limit(bytes); }
  {
    return to_->over_limit(bytes);
  }
  bool reclaim() noexcept
    requires requires(Device& d) { d.reclaim(); }
  {
    return to_->reclaim();
  }
  bool record(stream_id stream, event& mark) noexcept
    requires requires(Device& d) { d.record(stream, mark); }
  {
    return to_->record(stream, mark);
  }
  [[nodiscard]] bool query(event& mark) noexcept
    requires requires(Device& d) { d.query(mark); }
  {
    return to_->query(mark);
  }
  bool wait(event& mark) noexcept
    requires requires(Device& d) { d.wait(mark); }
  {
    return to_->wait(mark);
  }
  void discard(event& mark) noexcept
    requires requires(Device& d) { d.discard(mark); }
  {
    to_->discard(mark);
  }
  [[nodiscard]] bool has_stream(stream_id stream) noexcept
    requires requires(Device& d) { d.has_stream(stream); }
  {
    return to_->has_stream(stream);
  }
  [[nodiscard]] std::uint64_t position(stream_id stream) noexcept
    requires requires(Device& d) { d.position(stream); }
  {
    return to_->position(stream);
  }
  [[nodiscard]] bool is_done(stream_id stream, std::uint64_t at) noexcept
    requires requires(Device& d) { d.is_done(stream, at); }
  {
    return to_->is_done(stream, at);
  }
  [[nodiscard]] bool is_behind(stream_id stream, stream_id of, std::uint64_t at) noexcept
    requires requires(Device& d) { d.is_behind(stream, of, at); }
  {
    return to_->is_behind(stream, of, at);
  }
  bool let_wait(stream_id stream, stream_id of, std::uint64_t at) noexcept
    requires requires(Device& d) { d.let_wait(stream, of, at); }
  {
    return to_->let_wait(stream, of, at);
  }

  [[nodiscard]] std::size_t step(page_kind kind) const noexcept
    requires requires(const Device& d) { d.step(kind); }
  {
    return to_->step(kind);
  }
  [[nodiscard]] void* reserve(std::size_t bytes, std::size_t to) noexcept
    requires requires(Device& d) { d.reserve(bytes, to); }
  {
    return to_->reserve(bytes, to);
  }
  bool unreserve(void* p, std::size_t bytes) noexcept
    requires requires(Device& d) { d.unreserve(p, bytes); }
  {
    return to_->unreserve(p, bytes);
  }
  bool create(std::size_t bytes, page_kind kind, physical& memory) noexcept
    requires requires(Device& d) { d.create(bytes, kind, memory); }
  {
    return to_->create(bytes, kind, memory);
  }
  bool destroy(const physical& memory) noexcept
    requires requires(Device& d) { d.destroy(memory); }
  {
    return to_->destroy(memory);
  }
  bool map(void* p, std::size_t bytes, const physical& memory) noexcept
    requires requires(Device& d) { d.map(p, bytes, memory); }
  {
    return to_->map(p, bytes, memory);
  }
  bool grant(void* p, std::size_t bytes) noexcept
    requires requires(Device& d) { d.grant(p, bytes); }
  {
    return to_->grant(p, bytes);
  }
  bool unmap(void* p, std::size_t bytes) noexcept
    requires requires(Device& d) { d.unmap(p, bytes); }
  {
    return to_->unmap(p, bytes);
  }
  bool synchronize(stream_id stream) noexcept
    requires requires(Device& d) { d.synchronize(stream); }
  {
    return to_->synchronize(stream);
  }

  [[nodiscard]] std::int32_t process() const noexcept
    requires requires(const Device& d) { d.process(); }
  {
    return to_->process();
  }
  bool export_memory(const physical& memory, importers who, shareable& name) noexcept
    requires requires(Device& d) { d.export_memory(memory, who, name); }
  {
    return to_->export_memory(memory, who, name);
  }
  bool allow(const shareable& name, std::int32_t importer) noexcept
    requires requires(Device& d) { d.allow(name, importer); }
  {
    return to_->allow(name, importer);
  }
  bool import_memory(const shareable& name, physical& memory) noexcept
    requires requires(Device& d) { d.import_memory(name, memory); }
  {
    return to_->import_memory(name, memory);
  }

  bool register_memory(void* p, std::size_t bytes) noexcept
    requires requires(Device& d) { d.register_memory(p, bytes); }
  {
    return to_->register_memory(p, bytes);
  }
  bool unregister_memory(void* p) noexcept
    requires requires(Device& d) { d.unregister_memory(p); }
  {
    return to_->unregister_memory(p);
  }

  [[nodiscard]] Device& to() const noexcept { return *to_; }

 private:
  Device* to_;
};

}  // namespace tessera
