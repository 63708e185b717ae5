// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <deque>
#include <new>
#include <utility>
#include <vector>

#include <tessera/allocator_adaptor.hpp>
#include <tessera/concurrent/indexed.hpp>
#include <tessera/detail/blocks/checks.hpp>
#include <tessera/fwd.hpp>
#include <tessera/recipe/recipe.hpp>

namespace tessera::inline v0_1::concurrent {

/// Holds one allocator for each of several devices, numbered from 0. A free finds the device from the
/// address.
///
/// Choose it if one program uses several devices. `Front` is the allocator of one device, such as locked. front(device)
/// returns it; use it for all other calls, such as statistics.
///
///     #include <tessera/concurrent/locked.hpp>
///     std::vector<tessera::provider::simulated_device> devices;
///     for (unsigned d = 0; d < 2; ++d)
///       devices.emplace_back(tessera::provider::simulated_device::options{.device = d});
///     using device_allocator = tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device>;
///     tessera::concurrent::per_device<tessera::concurrent::locked<device_allocator>> all(std::move(devices));
///     void* p = all.allocate(5_MiB, 1);  // on the second device
///     all.deallocate(p);
///     std::printf("%zu bytes reserved there\n", all.front(1).current_usage().reserved);
///
///   Requires:  the devices' addresses do not overlap
template <typename Front>
class per_device : private allocator_adaptor<per_device<Front>> {
  using adaptor_type = allocator_adaptor<per_device>;
  static_assert(
      requires { typename Front::recipe_type; },
      "per_device<Front>: Front has one recipe. Make a configured for each device instead");

 public:
  using provider_type = typename Front::provider_type;
  using recipe_type = typename Front::recipe_type;
  /// The allocator of one device.
  using front_type = typename Front::template rebind_provider<detail::indexed<provider_type>>;
  static_assert(std::constructible_from<front_type, detail::indexed<provider_type>,
                                        const recipe::policies<recipe_type>&>,
                "per_device<Front>: Front is made from a device and policies, unlike planned");

  /// Makes one allocator for each device, with a copy of the settings and of the given extensions.
  template <typename... Given>
  explicit per_device(std::vector<provider_type> devices, const recipe::policies<recipe_type>& settings = {},
                      const Given&... given)
      : devices_(std::move(devices)) {
    if (devices_.size() > detail::pagemap::max_owners) detail::fatal("per_device: too many devices");
    for (provider_type& device : devices_) {
      const auto number = static_cast<detail::pagemap::owner_number>(fronts_.size());
      fronts_.emplace_back(detail::indexed<provider_type>(device, map_, number), settings, Given(given)...);
    }
  }
  per_device& operator=(per_device&&) = delete;

  /// How many devices there are; their numbers are from 0 to one less.
  [[nodiscard]] std::size_t devices() const noexcept { return fronts_.size(); }
  /// The allocator of one device.
  ///   Requires:  device < devices(); aborts otherwise. The same holds for the members below.
  [[nodiscard]] front_type& front(std::size_t device) noexcept {
    if (device >= fronts_.size()) detail::fatal("per_device: there is no device of this number");
    return fronts_[device];
  }

  [[nodiscard]] void* allocate(std::size_t bytes, std::size_t device, stream_id stream = {}) {
    return front(device).allocate(bytes, stream);
  }
  [[nodiscard]] void* try_allocate(std::size_t bytes, std::size_t device, stream_id stream = {}) noexcept {
    return front(device).try_allocate(bytes, stream);
  }

  /// The device of a live block.
  ///   Requires:  `p` is the address of a live block; for other addresses the result is any device, or
  ///              devices()
  [[nodiscard]] std::size_t device_of(const void* p) const noexcept {
    const detail::pagemap::owner_number owner = map_.owner_of(p);
    return owner != detail::pagemap::no_owner ? owner : fronts_.size();
  }

  using adaptor_type::deallocate, adaptor_type::try_deallocate, adaptor_type::record_stream,
      adaptor_type::try_record_stream;
  /// Trims each device.
  using adaptor_type::trim;
  /// Asks the eviction policy of each device to release idle memory.
  using adaptor_type::evict_idle;
  using adaptor_type::visit_owner;
  using adaptor_type::visit_policies, adaptor_type::for_each_allocator, adaptor_type::for_each_observer;
  /// Calls f(front, device) for each device.
  template <typename F>
  void for_each_device(F f) {
    for (std::size_t d = 0; d < devices(); ++d) f(front(d), d);
  }
  /// Returns the first broken invariant, or null.
  [[nodiscard]] const char* audit() const noexcept {
    for (const front_type& front : fronts_) {
      if (const char* const broken = front.audit(); broken != nullptr) return broken;
    }
    return nullptr;
  }

 private:
  friend adaptor_type;

  template <typename F>
  static void enter(per_device& me, F&& f) {
    for (front_type& front : me.fronts_) f(front);
  }
  template <typename F>
  static auto enter_owner(per_device& me, const void* p, const char* call, F&& f) {
    const std::size_t device = me.device_of(p);
    using result = decltype(f(me.fronts_[device]));
    if (device < me.fronts_.size()) return f(me.fronts_[device]);
    if (call != nullptr && p != nullptr) detail::refuse_stranger(call, p);
    return result();
  }

  std::vector<provider_type> devices_;
  detail::pagemap map_;
  std::deque<front_type> fronts_;
};

}  // namespace tessera::inline v0_1::concurrent
