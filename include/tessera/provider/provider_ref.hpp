// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include <tessera/core/page.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/provider/provider.hpp>

namespace tessera {

/// Has no event; what provider_ref shows of a provider without events.
struct no_event {
  bool operator==(const no_event&) const = default;
};

template <typename Provider>
struct event_of {
  using type = no_event;
};
template <event_provider Provider>
struct event_of<Provider> {
  using type = typename Provider::event;
};

/// Refers to a provider that somebody else owns, so that several allocators share one device.
///   Requires:  the provider outlives the reference
template <device_provider Provider>
class provider_ref {
 public:
  using event = typename event_of<Provider>::type;

  explicit provider_ref(Provider& device) noexcept : device_(&device) {}

  [[nodiscard]] void* acquire(std::size_t bytes) noexcept { return device_->acquire(bytes); }
  [[nodiscard]] void* acquire(std::size_t bytes, page_kind kind) noexcept
    requires paged_provider<Provider>
  {
    return device_->acquire(bytes, kind);
  }
  bool release(void* p, std::size_t bytes) noexcept { return device_->release(p, bytes); }
  [[nodiscard]] std::size_t capacity() const noexcept { return device_->capacity(); }
  [[nodiscard]] std::size_t granularity() const noexcept { return device_->granularity(); }

  bool record(stream_id stream, event& mark) noexcept
    requires event_provider<Provider>
  {
    return device_->record(stream, mark);
  }
  [[nodiscard]] bool query(event& mark) noexcept
    requires event_provider<Provider>
  {
    return device_->query(mark);
  }
  bool wait(event& mark) noexcept
    requires event_provider<Provider>
  {
    return device_->wait(mark);
  }
  void discard(event& mark) noexcept
    requires event_provider<Provider>
  {
    device_->discard(mark);
  }

 private:
  Provider* device_;
};

}  // namespace tessera
