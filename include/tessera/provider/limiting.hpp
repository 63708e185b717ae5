// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <memory>
#include <utility>

#include <tessera/core/page.hpp>
#include <tessera/provider/byte_budget.hpp>
#include <tessera/provider/forwarding.hpp>
#include <tessera/provider/provider.hpp>

namespace tessera {

/// Physical memory of a device, where that has any, and what it counts in a budget.
template <typename Device>
struct budgeted_memory {};
template <typename Device>
  requires requires { typename Device::physical; }
struct budgeted_memory<Device> {
  typename Device::physical memory{};
  std::size_t bytes = 0;
};

/// Hands a provider's calls on, as `Over` does, as far as a budget allows: segments and physical memory count in it, from
/// when they are asked for until the device took them back; what another process made counts nothing. If the
/// `LastPageMayPass`, what is created may pass the limit in part, where over_limit() is asked before about what is wanted of
/// it.
///   Requires:  the provider and the budget outlive it
template <typename Device, template <typename> typename Over = forwarding, bool LastPageMayPass = false>
class within_budget : public Over<Device> {
 public:
  using physical = budgeted_memory<Device>;
  using shareable = typename shareable_of<Device>::type;

  template <typename... Rest>
  explicit within_budget(byte_budget& budget, Device& to, Rest&&... rest) noexcept
      : Over<Device>(to, std::forward<Rest>(rest)...), budget_(&budget) {}

  template <std::same_as<page_kind>... Kind>
    requires requires(Device& d, std::size_t bytes, Kind... kind) { d.acquire(bytes, kind...); }
  [[nodiscard]] void* acquire(std::size_t bytes, Kind... kind) noexcept {
    void* given = nullptr;
    const auto ask = [&] { return (given = Over<Device>::acquire(bytes, kind...)) != nullptr; };
    return budget_->take(bytes, 0, ask) ? given : nullptr;
  }
  bool release(void* p, std::size_t bytes) noexcept {
    const bool gone = Over<Device>::release(p, bytes);
    if (gone) budget_->give_back(bytes);
    return gone;
  }
  [[nodiscard]] bool over_limit(std::size_t bytes) const noexcept {
    if constexpr (limited_provider<Device>) {
      if (this->to().over_limit(bytes)) return true;
    }
    return budget_->is_passed_by(bytes);
  }

  bool create(std::size_t bytes, page_kind kind, physical& made) noexcept
    requires requires(Device& d) { d.create(bytes, kind, made.memory); }
  {
    const auto ask = [&] { return this->to().create(bytes, kind, made.memory); };
    const bool works = budget_->take(bytes, LastPageMayPass ? bytes - 1 : 0, ask);
    if (works) made.bytes = bytes;
    return works;
  }
  bool destroy(const physical& leaving) noexcept
    requires requires(Device& d) { d.destroy(leaving.memory); }
  {
    const bool gone = this->to().destroy(leaving.memory);
    if (gone) budget_->give_back(leaving.bytes);
    return gone;
  }
  bool map(void* p, std::size_t bytes, const physical& made) noexcept
    requires requires(Device& d) { d.map(p, bytes, made.memory); }
  {
    return Over<Device>::map(p, bytes, made.memory);
  }
  bool export_memory(const physical& made, importers who, shareable& name) noexcept
    requires requires(Device& d) { d.export_memory(made.memory, who, name); }
  {
    return this->to().export_memory(made.memory, who, name);
  }
  bool import_memory(const shareable& name, physical& made) noexcept
    requires requires(Device& d) { d.import_memory(name, made.memory); }
  {
    made.bytes = 0;
    return this->to().import_memory(name, made.memory);
  }

 protected:
  [[nodiscard]] byte_budget& budget() const noexcept { return *budget_; }

 private:
  byte_budget* budget_;
};

/// Owns a provider and takes at most so much memory from it, in segments, in pages and for all allocators that share it by
/// provider_ref. Above that it refuses even where the device has room; its capacity is no more than that, either.
/// A limit of `unlimited` is none.
///
///     using device = tessera::limited<tessera::simulated_device>;
///     using allocator = tessera::caching_allocator<tessera::pytorch<>, tessera::provider_ref<device>>;
///     device half({}, 40_GiB);
///     allocator weights{tessera::provider_ref(half)};
///     allocator activations{tessera::provider_ref(half)};  // both together take at most 40 GiB
///
///   Source:  Paddle's gpu_memory_limit_mb (0 for none), which counts what is reserved, but several threads there may pass
///            it together, and virtual memory is not held to it
template <device_provider Device>
class limited : public within_budget<Device> {
 public:
  static constexpr bool is_thread_safe = tessera::is_thread_safe<Device>;

  limited(Device device, std::size_t limit)
      : limited(std::make_unique<possession>(std::move(device), limit)) {}

  [[nodiscard]] std::size_t capacity() const noexcept {
    const std::size_t all = this->to().capacity();
    return limit() < all ? limit() : all;
  }
  [[nodiscard]] std::size_t available() const noexcept
    requires measured_provider<Device>
  {
    const std::size_t on_device = this->to().available(), in_budget = this->budget().left();
    return in_budget < on_device ? in_budget : on_device;
  }
  [[nodiscard]] std::size_t limit() const noexcept { return this->budget().limit(); }
  /// Bytes that were taken and are not given back.
  [[nodiscard]] std::size_t taken() const noexcept { return this->budget().taken(); }

 private:
  struct possession {
    possession(Device given, std::size_t limit) : device(std::move(given)), budget(limit) {}
    Device device;
    byte_budget budget;
  };
  explicit limited(std::unique_ptr<possession> own)
      : within_budget<Device>(own->budget, own->device), own_(std::move(own)) {}

  std::unique_ptr<possession> own_;
};

}  // namespace tessera
