// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>

#include <tessera/core/page.hpp>
#include <tessera/core/stream.hpp>

namespace tessera {

/// Has no event; what stands for one where a provider knows none.
struct no_event {
  bool operator==(const no_event&) const = default;
};

template <typename Device>
struct event_of {
  using type = no_event;
};
template <typename Device>
  requires requires { typename Device::event; }
struct event_of<Device> {
  using type = typename Device::event;
};

/// Hands a provider's calls on to another one that lives longer; a derived class writes what differs over them.
template <typename Device>
class forwarding {
 public:
  using event = typename event_of<Device>::type;

  explicit forwarding(Device& to) noexcept : to_(&to) {}

  template <std::same_as<page_kind>... Kind>
    requires requires(Device& d, std::size_t bytes, Kind... kind) { d.acquire(bytes, kind...); }
  [[nodiscard]] void* acquire(std::size_t bytes, Kind... kind) noexcept {
    return to_->acquire(bytes, kind...);
  }
  bool release(void* p, std::size_t bytes) noexcept { return to_->release(p, bytes); }
  [[nodiscard]] std::size_t capacity() const noexcept { return to_->capacity(); }
  [[nodiscard]] std::size_t granularity() const noexcept { return to_->granularity(); }

  [[nodiscard]] bool over_limit(std::size_t bytes) const noexcept
    requires requires(const Device& d) { d.over_limit(bytes); }
  {
    return to_->over_limit(bytes);
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

  [[nodiscard]] Device& to() const noexcept { return *to_; }

 private:
  Device* to_;
};

}  // namespace tessera
