// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <mutex>
#include <thread>

#include <tessera/provider/adaptor.hpp>
#include <tessera/provider/host_pinned.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

/// Devices for the tests of adaptors and front ends.
namespace adaptor_tests {

/// While it is closed, threads that pass stop.
class gate {
 public:
  void shut() { shut_ = true; }
  void open() { shut_ = false; }
  void pass() {
    ++inside_;
    while (shut_) std::this_thread::yield();
    --inside_;
  }
  /// Returns once this many threads wait at it.
  void await(int count) const {
    while (inside_ < count) std::this_thread::yield();
  }

 private:
  std::atomic<bool> shut_{false};
  std::atomic<int> inside_{0};
};

/// A simulated device for several threads. A gate can stop each kind of long call.
class gated_device {
 public:
  using event = tessera::provider::simulated_device::event;
  using physical = tessera::provider::simulated_device::physical;
  static constexpr bool is_thread_safe = true;
  static constexpr bool map_grants_access = tessera::provider::simulated_device::map_grants_access;
  static constexpr bool unmap_wants_size = tessera::provider::simulated_device::unmap_wants_size;

  explicit gated_device(std::size_t capacity = tessera::operator""_GiB(1))
      : device_(tessera::provider::simulated_device::options{.capacity = capacity}) {}

  template <typename F>
  auto with(F f) {
    const std::lock_guard lock(mutex_);
    return f(device_);
  }

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
  std::uint64_t position(tessera::stream_id stream) noexcept {
    const std::lock_guard lock(mutex_);
    return device_.position(stream);
  }
  bool is_done(tessera::stream_id stream, std::uint64_t at) noexcept {
    const std::lock_guard lock(mutex_);
    return device_.is_done(stream, at);
  }
  bool is_ordered_after(tessera::stream_id stream, tessera::stream_id of, std::uint64_t at) noexcept {
    const std::lock_guard lock(mutex_);
    return device_.is_ordered_after(stream, of, at);
  }
  bool make_wait(tessera::stream_id stream, tessera::stream_id of, std::uint64_t at) noexcept {
    const std::lock_guard lock(mutex_);
    return device_.make_wait(stream, of, at);
  }
  std::size_t page_size(tessera::page_kind kind) const noexcept { return device_.page_size(kind); }
  void* reserve(std::size_t bytes, std::size_t to) noexcept {
    reserves.pass();
    return with([=](auto& d) { return d.reserve(bytes, to); });
  }
  bool unreserve(void* p, std::size_t bytes) noexcept {
    return with([=](auto& d) { return d.unreserve(p, bytes); });
  }
  bool create(std::size_t bytes, tessera::page_kind kind, physical& made) noexcept {
    return with([&](auto& d) { return d.create(bytes, kind, made); });
  }
  bool destroy(const physical& leaving) noexcept {
    return with([&](auto& d) { return d.destroy(leaving); });
  }
  bool map(void* p, std::size_t bytes, const physical& made) noexcept {
    maps.pass();
    return with([&](auto& d) { return d.map(p, bytes, made); });
  }
  bool grant(void* p, std::size_t bytes) noexcept {
    return with([=](auto& d) { return d.grant(p, bytes); });
  }
  bool unmap(void* p, std::size_t bytes) noexcept {
    return with([=](auto& d) { return d.unmap(p, bytes); });
  }
  bool synchronize(tessera::stream_id stream) noexcept {
    return with([=](auto& d) { return d.synchronize(stream); });
  }

  std::size_t used() {
    return with([](auto& d) { return d.used(); });
  }

  gate acquires, releases, waits, reserves, maps;

 private:
  std::mutex mutex_;
  tessera::provider::simulated_device device_;
};

/// A reference to a device, which the allocators take.
class gated_ref : public tessera::provider::provider_adaptor<gated_device> {
 public:
  static constexpr bool is_thread_safe = true;
  using provider_adaptor::provider_adaptor;
};
static_assert(tessera::provider::event_provider<gated_ref> && tessera::detail::is_thread_safe<gated_ref>);
static_assert(tessera::provider::virtual_memory_provider<gated_ref>);
static_assert(!tessera::detail::is_thread_safe<tessera::provider::simulated_device>);

/// Bytes of a kind that a device gave and that were not returned; 0 for none.
inline std::size_t outstanding(const tessera::provider::simulated_device& d) {
  return d.used() + d.held().handles + d.held().reserved + d.held().mapped;
}
inline std::size_t outstanding(gated_device& d) {
  return d.with([](auto& inside) { return outstanding(inside); });
}
inline std::size_t outstanding(const tessera::provider::host_pinned& d) {
  return d.used() + d.held().reserved + d.held().mapped;
}

}  // namespace adaptor_tests
