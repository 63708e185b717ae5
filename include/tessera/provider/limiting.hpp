// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <utility>

#include <tessera/provider/adaptor.hpp>
#include <tessera/provider/latest_refusals.hpp>

namespace tessera::inline v0_1::detail {

/// Counts the bytes that several threads have taken from a device, and refuses to exceed a limit.
///
/// The limit is exact. A request reserves its bytes during the device call. If only such reservations block a
/// request, it waits until they settle.
class byte_budget {
 public:
  explicit byte_budget(std::size_t limit) noexcept : limit_(limit) {}
  byte_budget& operator=(byte_budget&&) = delete;

  [[nodiscard]] std::size_t limit() const noexcept {
    const std::lock_guard lock(mutex_);
    return limit_;
  }
  /// Sets the limit, which may be below taken().
  void set_limit(std::size_t limit) noexcept {
    const std::lock_guard lock(mutex_);
    limit_ = limit;
    settled_.notify_all();
  }
  [[nodiscard]] std::size_t taken() const noexcept {
    const std::lock_guard lock(mutex_);
    return taken_;
  }
  /// The largest taken() since the start or the last reset_peak().
  ///
  /// It is never below the device's own peak. Bytes that threads give back and take concurrently may count
  /// twice.
  [[nodiscard]] std::size_t peak() const noexcept {
    const std::lock_guard lock(mutex_);
    return peak_;
  }
  /// The most segments or chunks that were taken at once, counted as peak().
  [[nodiscard]] std::size_t peak_pieces() const noexcept {
    const std::lock_guard lock(mutex_);
    return peak_pieces_;
  }
  void reset_peak() noexcept {
    const std::lock_guard lock(mutex_);
    peak_ = taken_;
    peak_pieces_ = pieces_;
  }
  /// Bytes that may still be taken.
  [[nodiscard]] std::size_t left() const noexcept {
    const std::lock_guard lock(mutex_);
    return limit_ > taken_ ? limit_ - taken_ : 0;
  }
  /// Whether taking `bytes` more would exceed the limit.
  [[nodiscard]] bool would_exceed(std::size_t bytes) const noexcept {
    const std::lock_guard lock(mutex_);
    return !has_room(bytes);
  }

  /// How taking `bytes` more would exceed the limit; empty if it would not.
  [[nodiscard]] refusal explain(std::size_t bytes) const noexcept {
    const std::lock_guard lock(mutex_);
    return has_room(bytes) ? refusal() : text_of_limit(bytes);
  }

  /// Calls ask(), which gets `bytes` from the device, if taken() + bytes <= limit + beyond. Counts them if
  /// ask() succeeds.
  ///
  /// No lock is held during ask(), which may call the other members.
  ///   Returns:  the result of ask(); false if the limit would be exceeded
  template <typename F>
  [[nodiscard]] bool take(std::size_t bytes, std::size_t beyond, F ask) noexcept {
    std::size_t given_back_before = 0, pieces_before = 0;
    {
      const std::size_t within = bytes - beyond;
      std::unique_lock lock(mutex_);
      settled_.wait(
          lock, [&] { return !has_room(within) || has_room(detail::saturating_add(in_flight_, within)); });
      if (!has_room(within)) {
        refused_.note(text_of_limit(within));
        return false;
      }
      in_flight_ += bytes;
      given_back_before = given_back_;
      pieces_before = given_back_pieces_;
    }
    const bool acquired = ask();
    if (!acquired) (void)refused_.take();  // the device's refusal is later
    const std::lock_guard lock(mutex_);
    in_flight_ -= bytes;
    if (acquired) {
      taken_ += bytes;
      // The device may have acquired these bytes before it released the bytes that were given back meanwhile.
      const std::size_t highest = taken_ + (given_back_ - given_back_before);
      peak_ = detail::larger(peak_, highest);
      peak_pieces_ = detail::larger(peak_pieces_, ++pieces_ + (given_back_pieces_ - pieces_before));
    }
    settled_.notify_all();
    return acquired;
  }
  /// Says how the limit refused the latest take() of the calling thread, and forgets it.
  refusal take_refusal() noexcept { return refused_.take(); }
  void give_back(std::size_t bytes) noexcept {
    const std::lock_guard lock(mutex_);
    taken_ -= bytes;
    given_back_ += bytes;
    const std::size_t piece = bytes > 0 ? 1 : 0;  // imported memory has no bytes
    pieces_ -= piece;
    given_back_pieces_ += piece;
    settled_.notify_all();
  }

 private:
  [[nodiscard]] bool has_room(std::size_t bytes) const noexcept {
    return detail::saturating_add(taken_, bytes) <= limit_;
  }
  [[nodiscard]] refusal text_of_limit(std::size_t bytes) const noexcept {
    return refusal::format("the provider's limit is %s, %s are taken, and %s are needed",
                           format_bytes(limit_).text(), format_bytes(taken_).text(),
                           format_bytes(bytes).text());
  }

  mutable std::mutex mutex_;
  std::condition_variable settled_;
  std::size_t limit_;
  std::size_t taken_ = 0;
  std::size_t peak_ = 0;
  std::size_t given_back_ = 0;  // since the start; wraps
  std::size_t pieces_ = 0, peak_pieces_ = 0, given_back_pieces_ = 0;
  std::size_t in_flight_ = 0;  // reserved by calls of take() that have not returned
  provider::latest_refusals refused_;
};

/// Physical memory of a device, and the number of bytes that count against a budget.
template <typename Device>
struct budgeted_memory {};
template <typename Device>
  requires requires { typename Device::physical; }
struct budgeted_memory<Device> {
  typename Device::physical memory{};
  std::size_t bytes = 0;
};

/// Counts segments and physical memory against a budget. Imported memory does not count.
///
/// With `LastPageMayExceed`, the last page of a create() may exceed the limit. The caller must then check
/// would_exceed_limit(needed bytes) first.
///   Requires:  the provider and the budget outlive it; Base is a provider_adaptor of Device
template <typename Device, typename Base = provider::provider_adaptor<Device>, bool LastPageMayExceed = false>
class within_budget : public Base {
 public:
  using physical = budgeted_memory<Device>;
  using typename Base::shareable;

  template <typename... Rest>
  explicit within_budget(byte_budget& budget, Device& device, Rest&&... rest) noexcept
      : Base(device, std::forward<Rest>(rest)...), budget_(&budget) {}

  template <std::same_as<page_kind>... Kind>
    requires detail::acquires_with<Device, Kind...>
  [[nodiscard]] void* acquire(std::size_t bytes, Kind... kind) noexcept {
    void* segment = nullptr;
    const auto ask = [&] {
      segment = Base::acquire(bytes, kind...);
      return segment != nullptr;
    };
    return budget_->take(bytes, 0, ask) ? segment : nullptr;
  }
  bool release(void* p, std::size_t bytes) noexcept {
    const bool released = Base::release(p, bytes);
    if (released) budget_->give_back(bytes);
    return released;
  }
  [[nodiscard]] bool would_exceed_limit(std::size_t bytes) const noexcept {
    if constexpr (detail::limited_provider<Device>) {
      if (Base::would_exceed_limit(bytes)) return true;
    }
    return budget_->would_exceed(bytes);
  }

  bool create(std::size_t bytes, page_kind kind, physical& made) noexcept
    requires provider::virtual_memory_provider<Device>
  {
    return create_by(bytes, made, [&] { return Base::create(bytes, kind, made.memory); });
  }
  /// Creates memory in one bank. It counts like create.
  bool create_in(std::size_t bank, std::size_t bytes, page_kind kind, physical& made) noexcept
    requires has_several_banks<Device>
  {
    return create_by(bytes, made, [&] { return Base::create_in(bank, bytes, kind, made.memory); });
  }
  bool destroy(const physical& made) noexcept
    requires provider::virtual_memory_provider<Device>
  {
    const bool destroyed = Base::destroy(made.memory);
    if (destroyed) budget_->give_back(made.bytes);
    return destroyed;
  }
  bool map(void* p, std::size_t bytes, const physical& made) noexcept
    requires provider::virtual_memory_provider<Device>
  {
    return Base::map(p, bytes, made.memory);
  }
  bool export_memory(const physical& made, provider::importers who, shareable& name) noexcept
    requires provider::sharing_provider<Device>
  {
    return Base::export_memory(made.memory, who, name);
  }
  [[nodiscard]] bool exported_name(const physical& made, shareable& name) const noexcept
    requires requires(const Device& d) { d.exported_name(made.memory, name); }
  {
    return Base::exported_name(made.memory, name);
  }
  bool import_memory(const shareable& name, physical& made) noexcept
    requires provider::sharing_provider<Device>
  {
    made.bytes = 0;
    return Base::import_memory(name, made.memory);
  }

 protected:
  [[nodiscard]] byte_budget& budget() const noexcept { return *budget_; }

 private:
  template <typename Create>
  bool create_by(std::size_t bytes, physical& made, Create create) noexcept {
    const bool created = budget_->take(bytes, LastPageMayExceed ? bytes - 1 : 0, create);
    if (created) made.bytes = bytes;
    return created;
  }
  byte_budget* budget_;
};

/// An adaptor's own provider, at an address that stays the same when the adaptor moves.
template <typename Device>
struct budgeted_device {
  budgeted_device(Device own, std::size_t limit) : device(std::move(own)), budget(limit) {}
  Device device;
  byte_budget budget;
};

}  // namespace tessera::inline v0_1::detail

namespace tessera::inline v0_1::provider {

/// Owns a provider and caps the bytes taken from it in segments and pages. `unlimited` means no cap.
///
/// Several allocators can share the cap through provider_ref. capacity() is at most the limit.
///
///     using device = tessera::provider::limiting<tessera::provider::simulated_device>;
///     using allocator = tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::provider_ref<device>>;
///     device half({}, 40_GiB);
///     allocator weights{tessera::provider::provider_ref(half)};
///     allocator activations{tessera::provider::provider_ref(half)};  // both together take at most 40 GiB
///
///   Source:  Paddle's gpu_memory_limit_mb (0 for none), which counts reserved bytes. In Paddle, concurrent
///            threads may exceed it, and virtual memory does not count.
template <device_provider Device>
class limiting : public detail::within_budget<Device> {
 public:
  static constexpr bool is_thread_safe = detail::is_thread_safe<Device>;

  /// Takes over a provider. `limit` is in bytes.
  limiting(Device device, std::size_t limit)
      : limiting(std::make_unique<detail::budgeted_device<Device>>(std::move(device), limit)) {}

  [[nodiscard]] std::size_t capacity() const noexcept {
    return (std::min)(limit(), this->inner().capacity());
  }
  [[nodiscard]] std::size_t available() const noexcept
    requires detail::measured_provider<Device>
  {
    return (std::min)(this->inner().available(), this->budget().left());
  }
  /// Bytes that may be taken at a time; `unlimited` if there is no cap.
  [[nodiscard]] std::size_t limit() const noexcept { return this->budget().limit(); }
  [[nodiscard]] refusal explain_limit(std::size_t bytes) const noexcept {
    const refusal of_device = detail::explain_limit(this->inner(), bytes);
    return of_device ? of_device : this->budget().explain(bytes);
  }
  refusal take_refusal() noexcept {
    const refusal of_device = detail::take_refusal(this->inner());
    const refusal of_limit = this->budget().take_refusal();
    return of_limit ? of_limit : of_device;
  }
  /// Bytes taken and not given back.
  [[nodiscard]] std::size_t taken() const noexcept { return this->budget().taken(); }

 private:
  explicit limiting(std::unique_ptr<detail::budgeted_device<Device>> own)
      : detail::within_budget<Device>(own->budget, own->device), own_(std::move(own)) {}

  std::unique_ptr<detail::budgeted_device<Device>> own_;
};

}  // namespace tessera::inline v0_1::provider
