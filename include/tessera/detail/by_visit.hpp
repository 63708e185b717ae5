// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include <tessera/core/error.hpp>
#include <tessera/core/statistics.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/detail/allocate_calls.hpp>
#include <tessera/detail/reach.hpp>

namespace tessera {

/// The calls of an allocator whose type is one of several, or that is elsewhere: each is made on the one that `Self::visit`
/// calls its argument with.
template <typename Self>
class by_visit : public allocate_calls<Self> {
  using calls = allocate_calls<Self>;

 public:
  using calls::allocate, calls::try_allocate, calls::deallocate, calls::record_stream;
  [[nodiscard]] void* allocate(std::size_t bytes, stream_id stream = {}) {
    return self().visit([=](auto& pool) { return pool.allocate(bytes, stream); });
  }
  [[nodiscard]] void* try_allocate(std::size_t bytes, stream_id stream = {}) noexcept {
    return self().visit([=](auto& pool) { return pool.try_allocate(bytes, stream); });
  }
  void deallocate(void* p) noexcept {
    self().visit([=](auto& pool) { pool.deallocate(p); });
  }
  void deallocate(void* p, std::size_t bytes) noexcept {
    self().visit([=](auto& pool) { pool.deallocate(p, bytes); });
  }
  [[nodiscard]] bool try_deallocate(void* p) noexcept {
    return self().visit([=](auto& pool) { return pool.try_deallocate(p); });
  }
  [[nodiscard]] bool record_stream(void* p, stream_id stream) noexcept {
    return self().visit([=](auto& pool) { return pool.record_stream(p, stream); });
  }
  [[nodiscard]] bool try_record_stream(void* p, stream_id stream) noexcept {
    return self().visit([=](auto& pool) { return pool.try_record_stream(p, stream); });
  }
  void trim(std::size_t keep = 0) noexcept {
    self().visit([=](auto& pool) { pool.trim(keep); });
  }
  [[nodiscard]] bool on_pressure(bool (*call)(void* context) noexcept, void* context) noexcept {
    return self().visit([=](auto& pool) { return pool.on_pressure(call, context); });
  }
  void reset_peak_statistics() noexcept {
    self().visit([](auto& pool) { pool.reset_peak_statistics(); });
  }
  void reset_accumulated_statistics() noexcept {
    self().visit([](auto& pool) { pool.reset_accumulated_statistics(); });
  }
  [[nodiscard]] out_of_memory failure(std::size_t bytes, stream_id stream = {}) noexcept {
    return self().visit([=](auto& pool) { return pool.failure(bytes, stream); });
  }
  [[nodiscard]] usage now() const noexcept {
    return self().visit([](const auto& pool) { return pool.now(); });
  }
  [[nodiscard]] const char* audit() const noexcept {
    return self().visit([](const auto& pool) { return pool.audit(); });
  }
  /// Calls f with the provider, as the allocator does whose it is.
  template <typename F>
  decltype(auto) with_device(F f) {
    return self().visit([&f](auto& pool) -> decltype(auto) { return with_device_of(pool, f); });
  }

 private:
  friend Self;
  by_visit() = default;
  [[nodiscard]] Self& self() noexcept { return static_cast<Self&>(*this); }
  [[nodiscard]] const Self& self() const noexcept { return static_cast<const Self&>(*this); }
};

}  // namespace tessera
