// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <mutex>

#include <tessera/core/page.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/provider/forwarding.hpp>
#include <tessera/provider/provider.hpp>

namespace tessera {

/// How long calls took, in microseconds.
struct call_time {
  std::uint64_t count = 0;
  std::uint64_t total = 0;
  std::uint64_t max = 0;
  std::uint64_t min = 0;  ///< 0 where there was none

  [[nodiscard]] constexpr double average() const noexcept {
    return count > 0 ? static_cast<double>(total) / static_cast<double>(count) : 0.0;
  }
  constexpr void add(std::uint64_t microseconds) noexcept {
    if (count == 0 || microseconds < min) min = microseconds;
    if (microseconds > max) max = microseconds;
    total += microseconds;
    ++count;
  }
  bool operator==(const call_time&) const = default;
};

/// The times of a provider's calls that worked, of each kind. Several threads may use it.
///   Source:  those of acquire and release are PyTorch's host_alloc_time and host_free_time
class call_times {
 public:
  enum class call : unsigned char {
    acquire,
    release,
    reserve,
    unreserve,
    create,
    destroy,
    map,
    grant,
    unmap,
    record,
    wait,
    synchronize
  };
  static constexpr std::array<const char*, 12> names{"acquire", "release", "reserve", "unreserve",
                                                     "create",  "destroy", "map",     "grant",
                                                     "unmap",   "record",  "wait",    "synchronize"};

  [[nodiscard]] call_time of(call what) const noexcept {
    const std::lock_guard lock(mutex_);
    return times_[static_cast<std::size_t>(what)];
  }
  [[nodiscard]] call_time acquire() const noexcept { return of(call::acquire); }
  [[nodiscard]] call_time release() const noexcept { return of(call::release); }
  void reset() noexcept {
    const std::lock_guard lock(mutex_);
    times_ = {};
  }
  void add(call what, std::uint64_t microseconds) noexcept {
    const std::lock_guard lock(mutex_);
    times_[static_cast<std::size_t>(what)].add(microseconds);
  }

 private:
  mutable std::mutex mutex_;
  std::array<call_time, names.size()> times_{};
};

/// A provider whose calls that may take long are timed where they work; a query, which never waits, is not.
///
///     tessera::simulated_device device;
///     tessera::call_times times;
///     using timed = tessera::timed<tessera::simulated_device>;
///     tessera::caching_allocator<tessera::pytorch<>, timed> watched{timed(device, times)};
///     watched.deallocate(watched.allocate(5_MiB));
///     std::printf("a segment took %.1f us\n", times.acquire().average());
///
///   Requires:  the provider and the times outlive it
template <typename Device, typename Clock = std::chrono::steady_clock>
class timed : public forwarding<Device> {
  using call = call_times::call;

 public:
  using typename forwarding<Device>::event;
  using typename forwarding<Device>::physical;
  static constexpr bool is_thread_safe = tessera::is_thread_safe<Device>;

  timed(Device& to, call_times& times) noexcept : forwarding<Device>(to), times_(&times) {}

  template <std::same_as<page_kind>... Kind>
    requires requires(Device& d, std::size_t bytes, Kind... kind) { d.acquire(bytes, kind...); }
  [[nodiscard]] void* acquire(std::size_t bytes, Kind... kind) noexcept {
    return time(call::acquire, [&] { return this->to().acquire(bytes, kind...); });
  }
  bool release(void* p, std::size_t bytes) noexcept {
    return time(call::release, [&] { return this->to().release(p, bytes); });
  }

  bool record(stream_id stream, event& mark) noexcept
    requires requires(Device& d) { d.record(stream, mark); }
  {
    return time(call::record, [&] { return this->to().record(stream, mark); });
  }
  bool wait(event& mark) noexcept
    requires requires(Device& d) { d.wait(mark); }
  {
    return time(call::wait, [&] { return this->to().wait(mark); });
  }

  [[nodiscard]] void* reserve(std::size_t bytes, std::size_t to) noexcept
    requires requires(Device& d) { d.reserve(bytes, to); }
  {
    return time(call::reserve, [&] { return this->to().reserve(bytes, to); });
  }
  bool unreserve(void* p, std::size_t bytes) noexcept
    requires requires(Device& d) { d.unreserve(p, bytes); }
  {
    return time(call::unreserve, [&] { return this->to().unreserve(p, bytes); });
  }
  bool create(std::size_t bytes, page_kind kind, physical& memory) noexcept
    requires requires(Device& d) { d.create(bytes, kind, memory); }
  {
    return time(call::create, [&] { return this->to().create(bytes, kind, memory); });
  }
  bool destroy(const physical& memory) noexcept
    requires requires(Device& d) { d.destroy(memory); }
  {
    return time(call::destroy, [&] { return this->to().destroy(memory); });
  }
  bool map(void* p, std::size_t bytes, const physical& memory) noexcept
    requires requires(Device& d) { d.map(p, bytes, memory); }
  {
    return time(call::map, [&] { return this->to().map(p, bytes, memory); });
  }
  bool grant(void* p, std::size_t bytes) noexcept
    requires requires(Device& d) { d.grant(p, bytes); }
  {
    return time(call::grant, [&] { return this->to().grant(p, bytes); });
  }
  bool unmap(void* p, std::size_t bytes) noexcept
    requires requires(Device& d) { d.unmap(p, bytes); }
  {
    return time(call::unmap, [&] { return this->to().unmap(p, bytes); });
  }
  bool synchronize(stream_id stream) noexcept
    requires requires(Device& d) { d.synchronize(stream); }
  {
    return time(call::synchronize, [&] { return this->to().synchronize(stream); });
  }

 private:
  template <typename F>
  [[nodiscard]] auto time(call what, F f) noexcept {
    const auto start = Clock::now();
    const auto worked = f();
    if (worked) {
      const auto took = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - start);
      times_->add(what, static_cast<std::uint64_t>(took.count()));
    }
    return worked;
  }

  call_times* times_;
};

}  // namespace tessera
