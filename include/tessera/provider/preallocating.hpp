// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <mutex>

#include <tessera/core/bytes.hpp>
#include <tessera/core/page.hpp>
#include <tessera/provider/forwarding.hpp>
#include <tessera/provider/provider.hpp>

namespace tessera {

/// One large piece of a provider's memory, taken when it is first needed, and given back at the end. Segments are cut off
/// one behind the other; what lies behind the last one that is in use is there again.
///
/// Several threads may use it where they may use the provider.
///   Requires:  the provider outlives it
template <device_provider Device>
class reserved_region {
 public:
  /// With 0 bytes, there is none.
  reserved_region(Device& from, std::size_t bytes) noexcept
      : from_(&from), size_(bytes > 0 ? align_up(bytes, from.granularity()) : 0) {}
  reserved_region(const reserved_region&) = delete;
  reserved_region& operator=(const reserved_region&) = delete;
  ~reserved_region() {
    if (begin_ != 0) (void)from_->release(reinterpret_cast<void*>(begin_), size_);
  }

  /// Null where there is no room, or the provider refuses the whole, for which it is asked once.
  [[nodiscard]] void* take(std::size_t bytes) noexcept {
    const std::lock_guard lock(mutex_);
    if (!was_taken_ && bytes <= size_) {
      was_taken_ = true;
      begin_ = reinterpret_cast<std::uintptr_t>(from_->acquire(size_));
    }
    if (begin_ == 0 || bytes > size_ - used_) return nullptr;
    void* const given = reinterpret_cast<void*>(begin_ + used_);
    used_ += bytes;
    ++in_use_;
    return given;
  }
  /// False where it was not taken from here.
  [[nodiscard]] bool put_back(void* p, std::size_t bytes) noexcept {
    const std::lock_guard lock(mutex_);
    const auto address = reinterpret_cast<std::uintptr_t>(p);
    if (begin_ == 0 || address < begin_ || address - begin_ >= size_) return false;
    if (--in_use_ == 0) {
      used_ = 0;
    } else if (address + bytes == begin_ + used_) {
      used_ -= bytes;
    }
    return true;
  }
  [[nodiscard]] Device& device() const noexcept { return *from_; }

 private:
  Device* from_;
  std::size_t size_;
  std::mutex mutex_;
  bool was_taken_ = false;
  std::uintptr_t begin_ = 0;
  std::size_t used_ = 0;    // bytes up to the end of the last segment
  std::size_t in_use_ = 0;  // segments
};

/// A provider that serves segments of normal pages from a reserved region as long as there is room, so that many of them
/// cost one call of the device.
///
///     tessera::simulated_device device;
///     tessera::reserved_region region(device, 1_GiB);
///     tessera::caching_allocator<tessera::pytorch<>, tessera::reserving<tessera::simulated_device>> cut{
///         tessera::reserving(region)};
///     for (int i = 0; i < 3; ++i) (void)cut.allocate(20_MiB);  // one call of the device
///
/// What the region takes back goes to the next one without the device, which so cannot wait for work: an allocator does
/// before. Nobody waits where work uses memory `OnlyWhereRecorded`, as with recipes for pinned memory.
///
///   Requires:  the region outlives it
///   Source:  PyTorch's pinned_reserve_segment_size_mb, where what was given back is lost
template <device_provider Device, bool OnlyWhereRecorded = false>
class reserving : public forwarding<Device> {
 public:
  static constexpr bool is_thread_safe = tessera::is_thread_safe<Device>;
  static constexpr bool release_waits = OnlyWhereRecorded && tessera::release_waits<Device>;

  explicit reserving(reserved_region<Device>& from) noexcept
      : forwarding<Device>(from.device()), from_(&from) {}

  [[nodiscard]] void* acquire(std::size_t bytes) noexcept {
    void* const given = from_->take(bytes);
    return given != nullptr ? given : this->to().acquire(bytes);
  }
  [[nodiscard]] void* acquire(std::size_t bytes, page_kind kind) noexcept
    requires paged_provider<Device>
  {
    return kind == normal_pages ? acquire(bytes) : this->to().acquire(bytes, kind);
  }
  bool release(void* p, std::size_t bytes) noexcept {
    return from_->put_back(p, bytes) || this->to().release(p, bytes);
  }

 private:
  reserved_region<Device>* from_;
};

}  // namespace tessera
