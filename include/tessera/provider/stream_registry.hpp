// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <set>

#include <tessera/core/stream.hpp>
#include <tessera/provider/forwarding.hpp>
#include <tessera/provider/provider.hpp>

namespace tessera {

/// Streams that a program has ended. Several threads may use it.
class ended_streams {
 public:
  /// Notes that a stream has ended, and so that all work which it was given is done.
  ///   Throws:  std::bad_alloc
  ///   Cost:    host memory for each stream, until another one begins by its handle
  void end(stream_id stream) {
    const std::lock_guard lock(mutex_);
    ended_.insert(stream);
  }
  /// Notes that there is one with this handle again.
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

/// A provider that is told which streams have ended, where a device does not know: from then on it is asked nothing about
/// them, their work counts as done, so that what is held for them comes back, and noting them for blocks gives false.
///
///     tessera::simulated_device device;
///     tessera::ended_streams ended;
///     using told = tessera::stream_registry<tessera::simulated_device>;
///     tessera::caching_allocator<tessera::pytorch<>, told> knowing{told(device, ended)};
///     void* p = knowing.allocate(5_MiB);
///     if (!knowing.record_stream(p, tessera::stream_id{7})) return;
///     ended.end(tessera::stream_id{7});  // when the program destroys it
///     knowing.deallocate(p);             // waits for nobody
///
///   Requires:  the provider and the streams outlive it
template <event_provider Device>
class stream_registry : public forwarding<Device> {
 public:
  static constexpr bool is_thread_safe = tessera::is_thread_safe<Device>;
  using typename forwarding<Device>::event;

  stream_registry(Device& to, const ended_streams& ended) noexcept : forwarding<Device>(to), ended_(&ended) {}

  [[nodiscard]] bool has_stream(stream_id stream) noexcept {
    return !ended_->has(stream) && tessera::has_stream(this->to(), stream);
  }
  bool record(stream_id stream, event& mark) noexcept {
    return !ended_->has(stream) && this->to().record(stream, mark);
  }
  bool synchronize(stream_id stream) noexcept
    requires requires(Device& d) { d.synchronize(stream); }
  {
    return ended_->has(stream) || this->to().synchronize(stream);
  }

  [[nodiscard]] std::uint64_t position(stream_id stream) noexcept
    requires ordering_provider<Device>
  {
    return ended_->has(stream) ? 0 : this->to().position(stream);
  }
  [[nodiscard]] bool is_done(stream_id stream, std::uint64_t at) noexcept
    requires ordering_provider<Device>
  {
    return ended_->has(stream) || this->to().is_done(stream, at);
  }
  [[nodiscard]] bool is_behind(stream_id stream, stream_id of, std::uint64_t at) noexcept
    requires ordering_provider<Device>
  {
    return ended_->has(of) || this->to().is_behind(stream, of, at);
  }
  bool let_wait(stream_id stream, stream_id of, std::uint64_t at) noexcept
    requires ordering_provider<Device>
  {
    return !ended_->has(stream) && (ended_->has(of) || this->to().let_wait(stream, of, at));
  }

 private:
  const ended_streams* ended_;
};

}  // namespace tessera
