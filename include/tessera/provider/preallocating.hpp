// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mutex>
#include <optional>

#include <tessera/provider/adaptor.hpp>
#include <tessera/provider/range_map.hpp>

namespace tessera::inline v0_1::detail {

/// One large segment of a provider, from which smaller segments are cut one after another.
///
/// The first take() acquires it, and the destructor releases it. If the provider refuses it, take() fails, and why_missing()
/// says why. The space after the last segment in use is available again. It is thread-safe if the provider is.
///   Cost:      about 100 bytes of host memory for each segment
///   Requires:  the provider outlives it
template <provider::device_provider Device>
class preallocated_region {
 public:
  /// With 0 bytes there is no region, and take() fails.
  preallocated_region(Device& device, std::size_t bytes) noexcept
      : device_(&device), size_(bytes > 0 ? align_up(bytes, device.granularity()) : 0) {}
  preallocated_region& operator=(preallocated_region&&) = delete;
  ~preallocated_region() {
    if (begin_ != 0) (void)device_->release(reinterpret_cast<void*>(begin_), size_);
  }

  /// Cuts a segment. The first call asks the provider for the region; no later call does.
  ///   Returns:  null if there is no room, or if the provider refused the region, or for 0 bytes
  [[nodiscard]] void* take(std::size_t bytes) noexcept {
    const std::lock_guard lock(mutex_);
    if (bytes == 0) return nullptr;
    if (!was_acquired_ && bytes <= size_) {
      was_acquired_ = true;
      begin_ = reinterpret_cast<std::uintptr_t>(device_->acquire(size_));
      if (begin_ == 0) {
        const refusal why = detail::take_refusal(*device_);
        why_missing_ = refusal::format("the region of %s could not be acquired%s%s",
                                       format_bytes(size_).text(), why ? ": " : "", why.text());
      }
    }
    if (begin_ == 0 || bytes > size_ - used_) return nullptr;
    void* const segment = reinterpret_cast<void*>(begin_ + used_);
    if (!segments_.insert(segment, {bytes})) return nullptr;
    used_ += bytes;
    return segment;
  }
  ///   Returns:  nothing if the address is not in this region; false if no segment of this size begins there
  [[nodiscard]] std::optional<bool> put_back(void* p, std::size_t bytes) noexcept {
    if (!contains(p)) return std::nullopt;
    const std::lock_guard lock(mutex_);
    const auto address = reinterpret_cast<std::uintptr_t>(p);
    const cut* const held = segments_.find(p);
    if (held == nullptr || held->bytes != bytes) return false;
    (void)segments_.extract(p);
    if (segments_.bytes() == 0) {
      used_ = 0;
    } else if (address + bytes == begin_ + used_) {
      used_ -= bytes;
    }
    return true;
  }
  /// Why the provider refused the region, so that each segment costs a call of it. Empty if it did not, and before the
  /// first request that the region could serve.
  [[nodiscard]] refusal why_missing() const noexcept {
    const std::lock_guard lock(mutex_);
    return why_missing_;
  }
  [[nodiscard]] bool contains(const void* p) noexcept {
    const std::lock_guard lock(mutex_);
    return begin_ != 0 && reinterpret_cast<std::uintptr_t>(p) - begin_ < size_;
  }
  [[nodiscard]] Device& device() const noexcept { return *device_; }

 private:
  struct cut {
    std::size_t bytes;
  };

  Device* device_;
  std::size_t size_;
  mutable std::mutex mutex_;
  refusal why_missing_{};
  bool was_acquired_ = false;
  std::uintptr_t begin_ = 0;
  std::size_t used_ = 0;     // bytes up to the end of the last segment
  range_map<cut> segments_;  // in use
};

}  // namespace tessera::inline v0_1::detail

namespace tessera::inline v0_1::provider {

/// Serves segments of normal pages from a preallocated region while it has room. So many segments cost one
/// device call.
///
///     tessera::provider::simulated_device device;
///     using preallocating = tessera::provider::preallocating<tessera::provider::simulated_device>;
///     preallocating::region region(device, 1_GiB);
///     tessera::caching_allocator<tessera::recipe::pytorch<>, preallocating> pool_over_region{preallocating(region)};
///     for (int i = 0; i < 3; ++i) (void)pool_over_region.allocate(20_MiB);  // one call of the device
///
/// Releasing a segment makes no device call, so the device cannot wait for running work. The allocator
/// therefore waits before it releases a segment. With `OnlyRecordedStreams` it does not wait. Choose that
/// only if work uses memory on recorded streams only, as with the recipes for pinned memory.
///
///   Requires:  the region outlives it
///   Source:  PyTorch's pinned_reserve_segment_size_mb, which never reuses a released segment
template <device_provider Device, bool OnlyRecordedStreams = false>
class preallocating : public provider_adaptor<Device> {
 public:
  /// The memory that segments are taken from: `region(device, bytes)` acquires it at the first request. If the device
  /// refuses it, the device serves, and why_missing() of the region says why.
  using region = detail::preallocated_region<Device>;
  static constexpr bool is_thread_safe = detail::is_thread_safe<Device>;
  static constexpr bool release_waits = OnlyRecordedStreams && detail::release_waits<Device>;
  static constexpr bool gives_in_parts = true;  // the region and its provider

  /// Takes segments from a region, and from its provider once the region is full.
  explicit preallocating(detail::preallocated_region<Device>& from) noexcept
      : provider_adaptor<Device>(from.device()), region_(&from) {}

  [[nodiscard]] void* acquire(std::size_t bytes) noexcept {
    void* const segment = region_->take(bytes);
    return segment != nullptr ? segment : this->inner().acquire(bytes);
  }
  [[nodiscard]] void* acquire(std::size_t bytes, page_kind kind) noexcept
    requires paged_provider<Device>
  {
    return kind == page_kind::normal ? acquire(bytes) : this->inner().acquire(bytes, kind);
  }
  bool release(void* p, std::size_t bytes) noexcept {
    const std::optional<bool> was_cut = region_->put_back(p, bytes);
    return was_cut ? *was_cut : this->inner().release(p, bytes);
  }
  /// Whether the segment at an address goes to the region when it is released, which may give it again.
  [[nodiscard]] bool keeps_released(const void* p) const noexcept {
    return region_->contains(p) || detail::keeps_released(this->inner(), p);
  }

 private:
  region* region_;
};

}  // namespace tessera::inline v0_1::provider
