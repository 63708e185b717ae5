// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <concepts>
#include <cstddef>
#include <mutex>
#include <string_view>
#include <utility>

#include <tessera/concurrent/indexed.hpp>
#include <tessera/concurrent/mutex_guarded.hpp>
#include <tessera/core/types.hpp>
#include <tessera/provider/provider.hpp>

/// What the ways into PyTorch share: the allocators of a program's devices, and statistics in PyTorch's structures.

namespace tessera::inline v0_1::detail {

/// Has static functions that make a device and its allocator.
template <typename D>
concept pluggable_definition = requires(int number) {
  { D::make_device(number) } -> provider::device_provider;
};

/// The states of a program's devices. The first use of a device makes its state, which stays until the end.
template <typename State>
class devices_on_demand {
 public:
  static constexpr int max_devices = 128;

  devices_on_demand() = default;
  devices_on_demand& operator=(devices_on_demand&&) = delete;
  ~devices_on_demand() {
    for (auto& device : devices_) delete device.load();
  }

  [[nodiscard]] static constexpr bool can_exist(int device) noexcept {
    return device >= 0 && device < max_devices;
  }
  /// The state of a device that was used, or null.
  [[nodiscard]] State* find(int device) const noexcept {
    if (!can_exist(device)) return nullptr;
    return devices_[static_cast<std::size_t>(device)].load(std::memory_order_acquire);
  }
  /// Makes State(pagemap, device) at the first use of a device.
  ///   Requires:  can_exist(device)
  [[nodiscard]] State& find_or_make(int device) {
    if (State* const state = find(device)) return *state;
    return make(device);
  }
  /// The state of the device that owns an address, or null. For an address that no device owns, it may be any.
  [[nodiscard]] State* owner_of(const void* p) const noexcept {
    const pagemap::owner_number owner = pagemap_.owner_of(p);
    return owner != pagemap::no_owner ? find(static_cast<int>(owner)) : nullptr;
  }
  /// Whether an address is in a segment of any device.
  [[nodiscard]] bool contains(const void* p) const noexcept { return pagemap_.contains(p); }
  /// Calls f(state) for each device that was used.
  template <typename F>
  void for_each(F f) {
    for (auto& device : devices_) {
      if (State* const state = device.load(std::memory_order_acquire)) f(*state);
    }
  }

 private:
  [[nodiscard, gnu::noinline]] State& make(int device) {
    calls_.check_lock(reentrancy_guard::lock::settings);
    const std::lock_guard lock(mutex_);
    const reentrancy_guard::call call(
        calls_, reentrancy_guard::lock::settings,
        "make_device and make_allocator must not use devices that are not made yet");
    auto& state = devices_[static_cast<std::size_t>(device)];
    if (state.load() == nullptr) state.store(new State(pagemap_, device), std::memory_order_release);
    return *state.load();
  }

  pagemap pagemap_;
  std::array<std::atomic<State*>, max_devices> devices_{};
  reentrancy_guard calls_;
  std::mutex mutex_;
};

}  // namespace tessera::inline v0_1::detail

namespace tessera::inline v0_1::interop {

/// Adds an allocator's statistics to a structure with PyTorch's members, such as
/// c10::CachingDeviceAllocator::DeviceStats. The members of pools are filled in for a recipe with two pools, small and
/// large. Peaks of several allocators add up to an upper bound.
///
///     struct stats {  // PyTorch's has more members
///       using group = std::array<tessera::counter, 3>;  // all pools, the small one, the large one
///       group allocation{}, segment{}, active{}, inactive_split{};
///       group allocated_bytes{}, reserved_bytes{}, active_bytes{}, inactive_split_bytes{}, requested_bytes{};
///       tessera::counter oversize_allocations{}, oversize_segments{};
///       std::int64_t num_alloc_retries = 0, num_ooms = 0, max_split_size = 0;
///     } sum;
///     tessera::interop::add_torch_statistics(sum, allocator.statistics());
template <typename DeviceStats, std::size_t Pools>
void add_torch_statistics(DeviceStats& to, const statistics<Pools>& from) {
  const auto add = [](auto& sum, const counter& part) {
    sum.current += part.current;
    sum.peak += part.peak;
    sum.allocated += part.allocated;
    sum.freed += part.freed;
  };
  const auto add_group = [&](auto& sum, counter pool_statistics::* part) {
    add(sum[0], from.all.*part);
    if constexpr (Pools == 2) {
      for (std::size_t pool = 0; pool < 2; ++pool) add(sum[pool + 1], from.pool[pool].*part);
    }
  };
  const auto add_count = [](auto& sum, std::uint64_t part) { sum += static_cast<std::int64_t>(part); };
  add_group(to.allocation, &pool_statistics::allocation);
  add_group(to.segment, &pool_statistics::segment);
  add_group(to.active, &pool_statistics::active);
  add_group(to.inactive_split, &pool_statistics::inactive_split);
  add_group(to.allocated_bytes, &pool_statistics::allocated_bytes);
  add_group(to.reserved_bytes, &pool_statistics::reserved_bytes);
  add_group(to.active_bytes, &pool_statistics::active_bytes);
  add_group(to.inactive_split_bytes, &pool_statistics::inactive_split_bytes);
  add_group(to.requested_bytes, &pool_statistics::requested_bytes);
  add(to.oversize_allocations, from.oversize_allocations);
  add(to.oversize_segments, from.oversize_segments);
  add_count(to.num_alloc_retries, from.num_alloc_retries);
  add_count(to.num_ooms, from.num_ooms);
  if constexpr (requires { to.num_sync_all_streams; }) {
    add_count(to.num_sync_all_streams, from.num_sync_all_streams);
    add_count(to.num_device_alloc, from.num_device_alloc);
    add_count(to.num_device_free, from.num_device_free);
  }
  if constexpr (requires { to.num_oom_rejections; })
    add_count(to.num_oom_rejections, from.num_oom_rejections);
  to.max_split_size = static_cast<std::int64_t>(from.max_split_size);  // no limit is -1, as in PyTorch
}

}  // namespace tessera::inline v0_1::interop
