// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <mutex>
#include <thread>

#include <tessera/provider/forwarding.hpp>
#include <tessera/tessera.hpp>

/// Devices for the tests of adaptors.
namespace adaptor_tests {

/// Stops whoever passes while it is shut.
class gate {
 public:
  void shut() { shut_ = true; }
  void open() { shut_ = false; }
  void pass() {
    ++inside_;
    while (shut_) std::this_thread::yield();
    --inside_;
  }
  /// Returns once so many stand before it.
  void await(int count) const {
    while (inside_ < count) std::this_thread::yield();
  }

 private:
  std::atomic<bool> shut_{false};
  std::atomic<int> inside_{0};
};

/// A simulated device for several threads, of which each kind of long call can be held up.
class gated_device {
 public:
  using event = tessera::simulated_device::event;
  static constexpr bool is_thread_safe = true;

  explicit gated_device(std::size_t capacity = tessera::operator""_GiB(1))
      : device_(tessera::simulated_device::options{.capacity = capacity}) {}

  void* acquire(std::size_t bytes) noexcept {
    acquires.pass();
    const std::lock_guard lock(mutex_);
    return device_.acquire(bytes);
  }
  bool release(void* p, std::size_t bytes) noexcept {
    releases.pass();
    const std::lock_guard lock(mutex_);
    return device_.release(p, bytes);
  }
  std::size_t capacity() const noexcept { return device_.capacity(); }
  std::size_t granularity() const noexcept { return device_.granularity(); }
  bool record(tessera::stream_id stream, event& mark) noexcept {
    const std::lock_guard lock(mutex_);
    return device_.record(stream, mark);
  }
  bool query(event& mark) noexcept {
    const std::lock_guard lock(mutex_);
    return device_.query(mark);
  }
  bool wait(event& mark) noexcept {
    waits.pass();
    const std::lock_guard lock(mutex_);
    return device_.wait(mark);
  }
  void discard(event& mark) noexcept {
    const std::lock_guard lock(mutex_);
    device_.discard(mark);
  }

  template <typename F>
  auto with(F f) {
    const std::lock_guard lock(mutex_);
    return f(device_);
  }
  std::size_t used() {
    return with([](auto& d) { return d.used(); });
  }

  gate acquires, releases, waits;

 private:
  std::mutex mutex_;
  tessera::simulated_device device_;
};

/// Refers to one; what the allocators take.
class gated_ref : public tessera::forwarding<gated_device> {
 public:
  static constexpr bool is_thread_safe = true;
  using forwarding::forwarding;
};
static_assert(tessera::event_provider<gated_ref> && tessera::is_thread_safe<gated_ref>);
static_assert(!tessera::is_thread_safe<tessera::simulated_device>);

}  // namespace adaptor_tests
