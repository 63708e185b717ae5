// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <mutex>

#include <tessera/core/page.hpp>
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

/// The times of the calls of a provider that gave memory and took it back. Several threads may use it.
///   Source:  PyTorch's host_alloc_time and host_free_time
class call_times {
 public:
  [[nodiscard]] call_time acquire() const noexcept { return read(acquire_); }
  [[nodiscard]] call_time release() const noexcept { return read(release_); }
  void reset() noexcept {
    const std::lock_guard lock(mutex_);
    acquire_ = release_ = {};
  }

  void add_acquire(std::uint64_t microseconds) noexcept { add(acquire_, microseconds); }
  void add_release(std::uint64_t microseconds) noexcept { add(release_, microseconds); }

 private:
  void add(call_time& to, std::uint64_t microseconds) noexcept {
    const std::lock_guard lock(mutex_);
    to.add(microseconds);
  }
  [[nodiscard]] call_time read(const call_time& from) const noexcept {
    const std::lock_guard lock(mutex_);
    return from;
  }

  mutable std::mutex mutex_;
  call_time acquire_, release_;
};

/// A provider of which the calls that give segments and take them back are timed; those that fail, and those about pages,
/// are not.
///   Requires:  the provider and the times outlive it
template <typename Device, typename Clock = std::chrono::steady_clock>
class timed : public forwarding<Device> {
 public:
  static constexpr bool is_thread_safe = tessera::is_thread_safe<Device>;

  timed(Device& to, call_times& times) noexcept : forwarding<Device>(to), times_(&times) {}

  template <std::same_as<page_kind>... Kind>
    requires requires(Device& d, std::size_t bytes, Kind... kind) { d.acquire(bytes, kind...); }
  [[nodiscard]] void* acquire(std::size_t bytes, Kind... kind) noexcept {
    const auto start = Clock::now();
    void* const given = this->to().acquire(bytes, kind...);
    if (given != nullptr) times_->add_acquire(since(start));
    return given;
  }
  bool release(void* p, std::size_t bytes) noexcept {
    const auto start = Clock::now();
    const bool released = this->to().release(p, bytes);
    if (released) times_->add_release(since(start));
    return released;
  }

 private:
  [[nodiscard]] static std::uint64_t since(typename Clock::time_point start) noexcept {
    const auto took = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - start);
    return static_cast<std::uint64_t>(took.count());
  }

  call_times* times_;
};

}  // namespace tessera
