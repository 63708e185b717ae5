// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <set>

#include <tessera/core/stream.hpp>
#include <tessera/provider/adaptor.hpp>
#include <tessera/provider/capabilities.hpp>
#include <tessera/provider/provider.hpp>

namespace tessera::detail {

/// The streams that a program has destroyed. Thread-safe.
class ended_streams {
 public:
  /// Records that a stream has ended. All of its work must be done.
  ///   Throws:  std::bad_alloc
  ///   Cost:    host memory for each stream, until begin() is called with the same handle
  void end(stream_id stream) {
    const std::lock_guard lock(mutex_);
    ended_.insert(stream);
  }
  /// Records that a new stream has this handle.
  void begin(stream_id stream) noexcept {
    const std::lock_guard lock(mutex_);
    ended_.erase(stream);
  }
  [[nodiscard]] bool has(stream_id stream) const noexcept {
    const std::lock_guard lock(mutex_);
    return ended_.contains(stream);
  }

 private:
  mutable std::mutex mutex_;
  std::set<stream_id> ended_;
};

}  // namespace tessera::detail

namespace tessera::provider {

/// Tells an allocator which streams have ended, for devices that do not know.
///
/// The device receives no calls for an ended stream. The stream's work counts as done, so pending blocks
/// become free. record_stream fails for an ended stream.
///
///     tessera::provider::simulated_device device;
///     using registry = tessera::provider::stream_registry<tessera::provider::simulated_device>;
///     registry::ended_streams ended;
///     tessera::caching_allocator<tessera::recipe::pytorch<>, registry> allocator{registry(device, ended)};
///     void* p = allocator.allocate(5_MiB);
///     if (!allocator.record_stream(p, tessera::stream_id{7})) return;
///     ended.end(tessera::stream_id{7});  // when the program destroys the stream
///     allocator.deallocate(p);           // waits for no work
///
///   Requires:  the provider and the streams outlive it
template <event_provider Device>
class stream_registry : public provider_adaptor<Device> {
 public:
  static constexpr bool is_thread_safe = detail::is_thread_safe<Device>;
  using ended_streams = detail::ended_streams;
  using typename provider_adaptor<Device>::event;

  stream_registry(Device& device, const ended_streams& ended) noexcept
      : provider_adaptor<Device>(device), ended_(&ended) {}

  [[nodiscard]] bool has_stream(stream_id stream) noexcept {
    return !ended_->has(stream) && tessera::detail::has_stream(this->inner(), stream);
  }
  bool record(stream_id stream, event& mark) noexcept {
    return !ended_->has(stream) && this->inner().record(stream, mark);
  }
  bool synchronize(stream_id stream) noexcept
    requires requires(Device& d) { d.synchronize(stream); }
  {
    return ended_->has(stream) || this->inner().synchronize(stream);
  }

  [[nodiscard]] std::uint64_t position(stream_id stream) noexcept
    requires ordering_provider<Device>
  {
    return ended_->has(stream) ? 0 : this->inner().position(stream);
  }
  [[nodiscard]] bool is_done(stream_id stream, std::uint64_t position) noexcept
    requires ordering_provider<Device>
  {
    return ended_->has(stream) || this->inner().is_done(stream, position);
  }
  [[nodiscard]] bool is_ordered_after(stream_id stream, stream_id other, std::uint64_t position) noexcept
    requires ordering_provider<Device>
  {
    return ended_->has(other) || this->inner().is_ordered_after(stream, other, position);
  }
  bool make_wait(stream_id stream, stream_id other, std::uint64_t position) noexcept
    requires ordering_provider<Device>
  {
    return !ended_->has(stream) && (ended_->has(other) || this->inner().make_wait(stream, other, position));
  }

 private:
  const ended_streams* ended_;
};

}  // namespace tessera::provider
