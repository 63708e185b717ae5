// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>

namespace tessera::inline v0_1::provider {

/// Gives memory objects addresses, and finds the object and the offset of an address.
///
/// Use it in a provider whose memory has no addresses: Vulkan's VkDeviceMemory, heaps of D3D12, buffers of
/// OpenCL or WebGPU. The addresses are only numbers. An allocator never dereferences them, so it serves such
/// memory unchanged. Users turn the address of a block into an object and an offset:
///
///     using heap = int;  // the handle of an object
///     tessera::provider::object_addresses<heap> addresses(8_GiB);
///     void* const segment = addresses.insert(heap{7}, 2_MiB);  // acquire returns it
///     const auto place = addresses.find(static_cast<char*>(segment) + 4096);
///     std::printf("object %d, offset %zu\n", *place.object, place.offset);
///     (void)addresses.extract(segment);  // release
///
/// Each object has a range of its own: the smallest power of two above `max_bytes`. So an offset has the
/// alignment of its address, up to the size of a range. Ranges are larger than their objects, so no block lies
/// in two objects.
///
/// One thread at a time may insert and extract. Meanwhile other threads may find the objects of addresses
/// that they hold.
///   Cost:  a few instructions for each call; a heap request when the number of objects doubles
template <typename Object>
class object_addresses {
 public:
  /// An object and an offset in it; no object if the address is in none.
  struct place {
    Object* object = nullptr;  ///< null if the address is in none
    std::size_t offset = 0;    ///< bytes from the beginning of the object
  };

  /// An object has at most `max_bytes`, which are at most 2^46 bytes.
  explicit object_addresses(std::size_t max_bytes) noexcept
      : max_bytes_(max_bytes < largest ? max_bytes : largest),
        shift_(static_cast<unsigned>(std::bit_width(max_bytes_))) {}
  object_addresses& operator=(object_addresses&&) = delete;

  /// Adds an object of `bytes`. Returns the address of its first byte, which is a multiple of the size of a
  /// range. Returns null if it is larger than `max_bytes`, or if host memory or ranges ran out.
  [[nodiscard]] void* insert(Object object, std::size_t bytes) noexcept {
    if (bytes == 0 || bytes > max_bytes_) return nullptr;
    std::size_t index = first_free_;
    if (index == none) {
      if (!has_room_for(used_)) return nullptr;
      index = used_++;
    } else {
      first_free_ = at(index).next_free;
    }
    entry& added = at(index);
    added.object = std::move(object);
    added.bytes = bytes;
    ++size_;
    return reinterpret_cast<void*>((index + 1) << shift_);
  }
  /// Removes the object whose first byte has this address.
  ///   Requires:  such an object
  Object extract(const void* begin) noexcept {
    const std::size_t index = index_of(begin);
    entry& removed = at(index);
    removed.bytes = 0;
    removed.next_free = std::exchange(first_free_, index);
    --size_;
    return std::exchange(removed.object, Object{});
  }
  /// Finds the object that contains an address.
  [[nodiscard]] place find(const void* p) const noexcept {
    const auto number = reinterpret_cast<std::uintptr_t>(p);
    const std::size_t index = index_of(p);
    if (index >= limit() || chunks_[chunk_of(index)] == nullptr) return {};
    entry& found = at(index);
    const std::size_t offset = number & ((std::uintptr_t{1} << shift_) - 1);
    return offset < found.bytes ? place{&found.object, offset} : place{};
  }
  /// The bytes of the object whose first byte has this address; 0 if there is none.
  [[nodiscard]] std::size_t bytes_at(const void* begin) const noexcept {
    const place found = find(begin);
    return found.object != nullptr && found.offset == 0 ? at(index_of(begin)).bytes : 0;
  }
  /// The number of objects.
  [[nodiscard]] std::size_t size() const noexcept { return size_; }

 private:
  struct entry {
    Object object{};
    std::size_t bytes = 0;
    std::size_t next_free = none;
  };
  static constexpr std::size_t none = ~std::size_t{0};
  static constexpr std::size_t largest = std::size_t{1} << 46;
  static constexpr std::size_t first_chunk = 64;
  static constexpr std::size_t max_chunks = 24;

  // Entries are in chunks that never move, so that find() needs no lock. Each chunk doubles their number.
  [[nodiscard]] static std::size_t chunk_of(std::size_t index) noexcept {
    return static_cast<std::size_t>(std::bit_width(index / first_chunk));
  }
  [[nodiscard]] static std::size_t begin_of(std::size_t chunk) noexcept {
    return chunk == 0 ? 0 : first_chunk << (chunk - 1);
  }
  [[nodiscard]] entry& at(std::size_t index) const noexcept {
    const std::size_t chunk = chunk_of(index);
    return chunks_[chunk][index - begin_of(chunk)];
  }
  /// The number of ranges. The last address has 63 bits.
  [[nodiscard]] std::size_t limit() const noexcept {
    const std::size_t ranges = (std::size_t{1} << (63 - shift_)) - 1;
    const std::size_t entries = begin_of(max_chunks);
    return ranges < entries ? ranges : entries;
  }
  [[nodiscard]] bool has_room_for(std::size_t index) noexcept {
    if (index >= limit()) return false;
    const std::size_t chunk = chunk_of(index);
    if (chunks_[chunk] == nullptr)
      chunks_[chunk].reset(new (std::nothrow) entry[begin_of(chunk + 1) - begin_of(chunk)]);
    return chunks_[chunk] != nullptr;
  }
  /// The index of a range; a large number for addresses below the first range.
  [[nodiscard]] std::size_t index_of(const void* p) const noexcept {
    return (reinterpret_cast<std::uintptr_t>(p) >> shift_) - 1;
  }

  std::unique_ptr<entry[]> chunks_[max_chunks];
  std::size_t max_bytes_;
  unsigned shift_;
  std::size_t used_ = 0;
  std::size_t first_free_ = none;
  std::size_t size_ = 0;
};

}  // namespace tessera::inline v0_1::provider
