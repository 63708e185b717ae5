// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <tessera/core/bytes.hpp>
#include <tessera/provider/adaptor.hpp>
#include <tessera/provider/host_pinned.hpp>
#include <tessera/provider/host_registering.hpp>
#include <tessera/provider/limiting.hpp>
#include <tessera/provider/memory_domains.hpp>
#include <tessera/provider/preallocating.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/provider/timed.hpp>

#include "any_device.hpp"

/// The providers under the allocators of the model: devices, alone or in adaptors.
namespace conformance {

using namespace tessera::literals;

class stand {
 public:
  virtual ~stand() = default;
  [[nodiscard]] virtual bool can_use(const void*, std::size_t) { return true; }
  virtual void hold_events(bool) {}
  [[nodiscard]] virtual std::uint64_t waits() { return 0; }
  /// A text about what is still held after the last allocator is destroyed.
  [[nodiscard]] virtual std::string left() = 0;
  /// Makes calls fail, if the device supports it; else null.
  [[nodiscard]] virtual tessera::detail::simulated_calls* calls() { return nullptr; }
  [[nodiscard]] virtual any_device::calls& any() = 0;
};

template <typename Device>
class simulated_stand final : public stand {
 public:
  explicit simulated_stand(std::size_t capacity = 900_MiB)
      : device{tessera::provider::simulated_device::options{.capacity = capacity}} {}
  bool can_use(const void* p, std::size_t bytes) override { return device.can_use(p, bytes); }
  void hold_events(bool held) override { device.hold_events(held); }
  std::uint64_t waits() override {
    const auto& made = device.calls();
    return made.wait + made.synchronize + made.make_wait + made.failed;
  }
  std::string left() override {
    const auto held = device.held();
    if (device.used() != 0 || held.handles != 0) return "the device still holds memory";
    if (device.live_events() != 0) return "events were recorded and never discarded";
    return held.reserved != 0 || held.mapped != 0 ? "the device still has ranges" : "";
  }
  tessera::detail::simulated_calls* calls() override { return &device; }
  any_device::calls& any() override { return any_; }

  Device device;

 private:
  calls_of<tessera::provider::provider_ref<Device>> any_{device};
};

/// Host memory, and one more stream.
class host_stand final : public stand {
 public:
  static constexpr tessera::stream_id side{1};
  host_stand() { (void)device.create_stream(); }
  std::string left() override {
    const auto held = device.held();
    return held.acquired + held.created + held.reserved + held.mapped != 0 ? "the device still holds memory"
                                                                           : "";
  }
  any_device::calls& any() override { return any_; }

  tessera::provider::host_pinned device{tessera::provider::host_pinned::options{
      .capacity = 256_MiB, .pin = tessera::provider::host_pinned::pinning::never}};

 private:
  calls_of<tessera::provider::provider_ref<tessera::provider::host_pinned>> any_{device};
};

/// A provider that wraps the device of another stand, which is destroyed later.
template <typename Stand, template <typename> typename Wrapping>
class wrapped_stand final : public stand {
 public:
  bool can_use(const void* p, std::size_t bytes) override { return below_.can_use(p, bytes); }
  void hold_events(bool held) override { below_.hold_events(held); }
  std::uint64_t waits() override { return below_.waits(); }
  std::string left() override {
    std::string above;
    if constexpr (requires { wrapping_->left(); }) above = wrapping_->left();
    wrapping_.reset();
    return above.empty() ? below_.left() : above;
  }
  tessera::detail::simulated_calls* calls() override { return below_.calls(); }
  any_device::calls& any() override { return wrapping_->calls; }

 private:
  using device = decltype(Stand::device);
  Stand below_;
  std::unique_ptr<Wrapping<device>> wrapping_ = std::make_unique<Wrapping<device>>(below_.device);
};

template <typename Device>
struct in_limit {
  using ref = tessera::provider::provider_ref<Device>;
  explicit in_limit(Device& device) : calls(ref(device), 150_MiB) {}
  calls_of<tessera::provider::limiting<ref>> calls;
};
template <typename Device>
struct in_region {
  explicit in_region(Device& device) : region(device, 64_MiB), calls(region) {}
  typename tessera::provider::preallocating<Device>::region region;
  calls_of<tessera::provider::preallocating<Device>> calls;
};
template <typename Device>
struct in_time {
  explicit in_time(Device& device) : calls(device, times) {}
  tessera::provider::call_times times;
  calls_of<tessera::provider::timed<Device>> calls;
};
/// The device and a second bank of it, which serve in turn.
template <typename Device>
struct in_domains {
  using ref = tessera::provider::provider_ref<Device>;
  using domains = tessera::provider::memory_domains<ref, tessera::provider::interleave_banks>;
  explicit in_domains(Device& device)
      : second(device.another_bank({.capacity = 150_MiB})),
        calls(std::vector<typename domains::bank>{{ref(device)}, {ref(second)}}) {}
  [[nodiscard]] std::string left() const {
    return second.used() != 0 ? "the second bank still holds memory" : "";
  }
  Device second;
  calls_of<domains> calls;
};
/// Host memory that is registered with another device.
template <typename Device>
struct in_registry {
  explicit in_registry(Device& memory) : calls(memory, registering) { (void)registering.create_stream(); }
  tessera::provider::host_pinned registering{
      tessera::provider::host_pinned::options{.pin = tessera::provider::host_pinned::pinning::never}};
  calls_of<tessera::provider::host_registering<Device, tessera::provider::host_pinned>> calls;
};

}  // namespace conformance
