// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <deque>
#include <new>
#include <utility>
#include <vector>

#include <tessera/caching_allocator.hpp>
#include <tessera/concurrent/locked.hpp>
#include <tessera/core/allocator_event.hpp>
#include <tessera/core/fatal.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/detail/caller_mistake.hpp>
#include <tessera/detail/owner.hpp>
#include <tessera/detail/pagemap.hpp>
#include <tessera/fwd.hpp>
#include <tessera/provider/registered.hpp>

namespace tessera {

/// One allocator for each of several devices, numbered from 0; a block is given back without saying where it came from.
/// What concerns one device, as its statistics, is asked of its front().
///
///     std::vector<tessera::simulated_device> devices;
///     for (unsigned d = 0; d < 2; ++d) devices.emplace_back(tessera::simulated_device::options{.device = d});
///     tessera::per_device<tessera::pytorch<>, tessera::simulated_device> all(std::move(devices));
///     void* p = all.allocate(5_MiB, 1);  // on the second
///     all.deallocate(p);
///     std::printf("%zu bytes reserved there\n", all.front(1).now().reserved);
///
///   Requires:  the devices' addresses do not overlap
template <typename Recipe, device_provider Provider,
          template <typename, device_provider, event_observer, typename> typename Front,
          event_observer Observer, typename Counting>
class per_device {
 public:
  using front_type = Front<Recipe, registered<Provider>, Observer, Counting>;

  /// Each device begins with a copy of the settings and of the sink.
  explicit per_device(std::vector<Provider> devices, const policies<Recipe>& chosen = {},
                      const Observer& observer = {})
      : devices_(std::move(devices)) {
    if (devices_.size() > pagemap::most_owners) fatal("per_device: too many devices");
    for (Provider& device : devices_) {
      const auto number = static_cast<pagemap::owner_number>(fronts_.size());
      fronts_.emplace_back(registered<Provider>(device, directory_, number), chosen, observer);
    }
  }
  per_device(const per_device&) = delete;
  per_device& operator=(const per_device&) = delete;

  [[nodiscard]] std::size_t devices() const noexcept { return fronts_.size(); }
  /// The allocator of one device, with all its calls.
  ///   Requires:  device < devices(), here and below; else the program ends
  [[nodiscard]] front_type& front(std::size_t device) noexcept {
    if (device >= fronts_.size()) fatal("per_device: there is no device of this number");
    return fronts_[device];
  }

  [[nodiscard]] void* allocate(std::size_t bytes, std::size_t device, stream_id stream = {}) {
    return front(device).allocate(bytes, stream);
  }
  [[nodiscard]] void* allocate(std::size_t bytes, std::align_val_t alignment, std::size_t device,
                               stream_id stream = {}) {
    return front(device).allocate(bytes, alignment, stream);
  }
  [[nodiscard]] void* try_allocate(std::size_t bytes, std::size_t device, stream_id stream = {}) noexcept {
    return front(device).try_allocate(bytes, stream);
  }

  /// The device that a live block is on.
  ///   Requires:  the address of a live block; of others the answer may also be a device, or devices()
  [[nodiscard]] std::size_t device_of(const void* p) const noexcept {
    const pagemap::owner_number owner = directory_.owner_of(p);
    return owner != pagemap::no_owner ? owner : fronts_.size();
  }
  void deallocate(void* p) noexcept {
    if (p != nullptr) owner_of("deallocate", p).deallocate(p);
  }
  void deallocate(void* p, std::size_t bytes) noexcept {
    if (p != nullptr) owner_of("deallocate", p).deallocate(p, bytes);
  }
  /// As those of an allocate_calls, of what front(device) gave with an alignment.
  void deallocate(void* p, std::size_t bytes, std::align_val_t alignment) noexcept {
    if (p != nullptr) owner_of("deallocate", p).deallocate(p, bytes, alignment);
  }
  [[nodiscard]] bool record_stream(void* p, std::size_t bytes, std::align_val_t alignment,
                                   stream_id stream) noexcept {
    return p != nullptr && owner_of("record_stream", p).record_stream(p, bytes, alignment, stream);
  }
  [[nodiscard]] bool try_deallocate(void* p) noexcept {
    const std::size_t device = device_of(p);
    return device < fronts_.size() && fronts_[device].try_deallocate(p);
  }
  [[nodiscard]] bool record_stream(void* p, stream_id stream) noexcept {
    return p != nullptr && owner_of("record_stream", p).record_stream(p, stream);
  }
  [[nodiscard]] bool try_record_stream(void* p, stream_id stream) noexcept {
    const std::size_t device = device_of(p);
    return device < fronts_.size() && fronts_[device].try_record_stream(p, stream);
  }
  /// Calls f with the allocator in whose segments an address lies, if there is one.
  template <typename F>
  void enter_owner(const void* p, F f) {
    if (const std::size_t device = device_of(p); device < fronts_.size())
      with_owner_of(fronts_[device], p, f);
  }
  void trim(std::size_t keep_on_each = 0) noexcept {
    for (front_type& f : fronts_) f.trim(keep_on_each);
  }
  /// The first broken invariant in words, or null.
  [[nodiscard]] const char* audit() const noexcept {
    for (const front_type& f : fronts_) {
      if (const char* const broken = f.audit(); broken != nullptr) return broken;
    }
    return nullptr;
  }

 private:
  [[nodiscard]] front_type& owner_of(const char* call, void* p) noexcept {
    const std::size_t device = device_of(p);
    if (device >= fronts_.size()) refuse_stranger(call, p);
    return fronts_[device];
  }

  std::vector<Provider> devices_;
  pagemap directory_;
  std::deque<front_type> fronts_;
};

}  // namespace tessera
