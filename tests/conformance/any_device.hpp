// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include <tessera/core/types.hpp>
#include <tessera/provider/provider.hpp>

namespace conformance {

/// A device of unknown type. An allocator over it is compiled once for all devices.
class any_device {
 public:
  /// An event or a handle of any device.
  struct some {
    std::array<std::uint64_t, 4> raw{};
    bool operator==(const some&) const = default;
  };
  using event = some;
  using physical = some;
  static constexpr bool map_grants_access = false;
  static constexpr bool unmap_wants_size = true;
  static constexpr bool release_waits = false;  // not every device has it

  /// The calls, forwarded to the real device.
  class calls {
   public:
    virtual ~calls() = default;
    virtual void* acquire(std::size_t bytes) noexcept = 0;
    virtual void* acquire(std::size_t bytes, tessera::page_kind kind) noexcept = 0;
    virtual bool release(void* p, std::size_t bytes) noexcept = 0;
    virtual std::size_t capacity() const noexcept = 0;
    virtual std::size_t available() const noexcept = 0;
    virtual std::size_t granularity() const noexcept = 0;
    virtual bool would_exceed_limit(std::size_t bytes) const noexcept = 0;
    virtual bool record(tessera::stream_id stream, some& mark) noexcept = 0;
    virtual bool query(some& mark) noexcept = 0;
    virtual bool wait(some& mark) noexcept = 0;
    virtual void discard(some& mark) noexcept = 0;
    virtual std::uint64_t position(tessera::stream_id stream) noexcept = 0;
    virtual bool is_done(tessera::stream_id stream, std::uint64_t at) noexcept = 0;
    virtual bool is_ordered_after(tessera::stream_id stream, tessera::stream_id of,
                                  std::uint64_t at) noexcept = 0;
    virtual bool make_wait(tessera::stream_id stream, tessera::stream_id of, std::uint64_t at) noexcept = 0;
    virtual std::size_t page_size(tessera::page_kind kind) const noexcept = 0;
    virtual void* reserve(std::size_t bytes, std::size_t to) noexcept = 0;
    virtual bool unreserve(void* p, std::size_t bytes) noexcept = 0;
    virtual bool create(std::size_t bytes, tessera::page_kind kind, some& made) noexcept = 0;
    virtual bool destroy(const some& leaving) noexcept = 0;
    virtual bool map(void* p, std::size_t bytes, const some& made) noexcept = 0;
    virtual bool grant(void* p, std::size_t bytes) noexcept = 0;
    virtual bool unmap(void* p, std::size_t bytes) noexcept = 0;
    virtual bool synchronize(tessera::stream_id stream) noexcept = 0;
  };

  explicit any_device(calls& to) noexcept : to_(&to) {}

  [[nodiscard]] void* acquire(std::size_t bytes) noexcept { return to_->acquire(bytes); }
  [[nodiscard]] void* acquire(std::size_t bytes, tessera::page_kind kind) noexcept {
    return to_->acquire(bytes, kind);
  }
  bool release(void* p, std::size_t bytes) noexcept { return to_->release(p, bytes); }
  [[nodiscard]] std::size_t capacity() const noexcept { return to_->capacity(); }
  [[nodiscard]] std::size_t available() const noexcept { return to_->available(); }
  [[nodiscard]] std::size_t granularity() const noexcept { return to_->granularity(); }
  [[nodiscard]] bool would_exceed_limit(std::size_t bytes) const noexcept {
    return to_->would_exceed_limit(bytes);
  }
  bool record(tessera::stream_id stream, event& mark) noexcept { return to_->record(stream, mark); }
  [[nodiscard]] bool query(event& mark) noexcept { return to_->query(mark); }
  bool wait(event& mark) noexcept { return to_->wait(mark); }
  void discard(event& mark) noexcept { to_->discard(mark); }
  [[nodiscard]] std::uint64_t position(tessera::stream_id stream) noexcept { return to_->position(stream); }
  [[nodiscard]] bool is_done(tessera::stream_id stream, std::uint64_t at) noexcept {
    return to_->is_done(stream, at);
  }
  [[nodiscard]] bool is_ordered_after(tessera::stream_id stream, tessera::stream_id of,
                                      std::uint64_t at) noexcept {
    return to_->is_ordered_after(stream, of, at);
  }
  bool make_wait(tessera::stream_id stream, tessera::stream_id of, std::uint64_t at) noexcept {
    return to_->make_wait(stream, of, at);
  }
  [[nodiscard]] std::size_t page_size(tessera::page_kind kind) const noexcept { return to_->page_size(kind); }
  [[nodiscard]] void* reserve(std::size_t bytes, std::size_t to) noexcept { return to_->reserve(bytes, to); }
  bool unreserve(void* p, std::size_t bytes) noexcept { return to_->unreserve(p, bytes); }
  bool create(std::size_t bytes, tessera::page_kind kind, physical& made) noexcept {
    return to_->create(bytes, kind, made);
  }
  bool destroy(const physical& leaving) noexcept { return to_->destroy(leaving); }
  bool map(void* p, std::size_t bytes, const physical& made) noexcept { return to_->map(p, bytes, made); }
  bool grant(void* p, std::size_t bytes) noexcept { return to_->grant(p, bytes); }
  bool unmap(void* p, std::size_t bytes) noexcept { return to_->unmap(p, bytes); }
  bool synchronize(tessera::stream_id stream) noexcept { return to_->synchronize(stream); }

 private:
  calls* to_;
};
static_assert(tessera::provider::ordering_provider<any_device> &&
              tessera::provider::virtual_memory_provider<any_device>);

/// The calls of a device of this type, which it owns or refers to. Without virtual memory, these calls fail.
template <typename Device>
class calls_of final : public any_device::calls {
  using some = any_device::some;
  static constexpr bool has_ranges = tessera::provider::virtual_memory_provider<Device>;

 public:
  template <typename... Argument>
  explicit calls_of(Argument&&... argument) : device(std::forward<Argument>(argument)...) {}

  void* acquire(std::size_t bytes) noexcept override { return device.acquire(bytes); }
  void* acquire(std::size_t bytes, tessera::page_kind kind) noexcept override {
    return device.acquire(bytes, kind);
  }
  bool release(void* p, std::size_t bytes) noexcept override { return device.release(p, bytes); }
  std::size_t capacity() const noexcept override { return device.capacity(); }
  std::size_t available() const noexcept override { return tessera::detail::left_on(device, 0); }
  std::size_t granularity() const noexcept override { return device.granularity(); }
  bool would_exceed_limit(std::size_t bytes) const noexcept override {
    if constexpr (tessera::detail::limited_provider<Device>) return device.would_exceed_limit(bytes);
    return false;
  }
  bool record(tessera::stream_id stream, some& mark) noexcept override {
    auto own = from<typename Device::event>(mark);
    return device.record(stream, own) && (to(mark, own), true);
  }
  bool query(some& mark) noexcept override {
    auto own = from<typename Device::event>(mark);
    const bool ready = device.query(own);
    to(mark, own);
    return ready;
  }
  bool wait(some& mark) noexcept override {
    auto own = from<typename Device::event>(mark);
    const bool done = device.wait(own);
    to(mark, own);
    return done;
  }
  void discard(some& mark) noexcept override {
    auto own = from<typename Device::event>(mark);
    device.discard(own);
    to(mark, own);
  }
  std::uint64_t position(tessera::stream_id stream) noexcept override { return device.position(stream); }
  bool is_done(tessera::stream_id stream, std::uint64_t at) noexcept override {
    return device.is_done(stream, at);
  }
  bool is_ordered_after(tessera::stream_id stream, tessera::stream_id of,
                        std::uint64_t at) noexcept override {
    return device.is_ordered_after(stream, of, at);
  }
  bool make_wait(tessera::stream_id stream, tessera::stream_id of, std::uint64_t at) noexcept override {
    return device.make_wait(stream, of, at);
  }
  std::size_t page_size(tessera::page_kind kind) const noexcept override {
    if constexpr (has_ranges) return device.page_size(kind);
    return device.granularity();
  }
  void* reserve(std::size_t bytes, std::size_t at) noexcept override {
    if constexpr (has_ranges) return device.reserve(bytes, at);
    return nullptr;
  }
  bool unreserve(void* p, std::size_t bytes) noexcept override {
    if constexpr (has_ranges) return device.unreserve(p, bytes);
    return false;
  }
  bool create(std::size_t bytes, tessera::page_kind kind, some& made) noexcept override {
    if constexpr (has_ranges) {
      typename Device::physical own{};
      return device.create(bytes, kind, own) && (to(made, own), true);
    }
    return false;
  }
  bool destroy(const some& leaving) noexcept override {
    if constexpr (has_ranges) return device.destroy(from<typename Device::physical>(leaving));
    return false;
  }
  bool map(void* p, std::size_t bytes, const some& made) noexcept override {
    if constexpr (has_ranges) return device.map(p, bytes, from<typename Device::physical>(made));
    return false;
  }
  bool grant(void* p, std::size_t bytes) noexcept override {
    if constexpr (has_ranges) return device.grant(p, bytes);
    return false;
  }
  bool unmap(void* p, std::size_t bytes) noexcept override {
    if constexpr (has_ranges) return device.unmap(p, bytes);
    return false;
  }
  bool synchronize(tessera::stream_id stream) noexcept override {
    if constexpr (has_ranges) return device.synchronize(stream);
    return tessera::detail::finish_work(device, stream);
  }

  Device device;

 private:
  template <typename Own>
  [[nodiscard]] static Own from(const some& kept) noexcept {
    static_assert(std::is_trivially_copyable_v<Own> && sizeof(Own) <= sizeof(some));
    Own own;
    std::memcpy(static_cast<void*>(&own), kept.raw.data(), sizeof own);
    return own;
  }
  template <typename Own>
  static void to(some& kept, const Own& own) noexcept {
    std::memcpy(kept.raw.data(), static_cast<const void*>(&own), sizeof own);
  }
};

}  // namespace conformance
