// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

namespace tessera::detail {

/// Finds objects by a 64-bit key that each object carries: `std::uint64_t map_key() const`. It does not own
/// the objects.
///
/// It uses open addressing with linear probing and is at most three eighths full. A removed entry leaves a
/// hole, which ends no search. A search ends after the largest number of steps that an insert ever took.
///   Cost:  one probe in nearly all cases; the host heap is called when the table grows or shrinks
template <typename Value>
class key_map {
 public:
  key_map() = default;
  key_map(const key_map&) = delete;
  key_map& operator=(const key_map&) = delete;
  ~key_map() {
    if (capacity() > 0) delete[] entries_;
  }

  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] std::size_t metadata_bytes() const noexcept { return capacity() * sizeof(Value*); }

  /// Makes sure that the next insert succeeds. Returns false if host memory ran out.
  [[nodiscard]] bool reserve_one() noexcept {
    if (size_ < grow_at_) return true;
    return rehash(capacity() == 0 ? 16 : capacity() * 2);
  }
  /// Makes sure that the next `count` inserts succeed, even if objects are removed before. Until
  /// end_reserve(), the table does not shrink. Returns false if host memory ran out.
  [[nodiscard]] bool hold_reserve(std::size_t count) noexcept {
    std::size_t wanted = capacity() == 0 ? 16 : capacity();
    while (wanted / 8 * 3 < size_ + count) wanted *= 2;
    if (wanted != capacity() && !rehash(wanted)) return false;
    shrink_at_ = 0;
    return true;
  }
  /// Ends hold_reserve().
  void end_reserve() noexcept {
    shrink_at_ = min_size(capacity());
    while (size_ < shrink_at_ && rehash(capacity() / 4)) {
    }
  }

  /// Inserts an object.
  ///   Requires:  a preceding reserve_one()
  ///   Requires:  `key` is the object's key, and no other object in the map has it
  void insert(std::uint64_t key, Value& value) noexcept {
    std::size_t at = slot_of(key);
    for (std::size_t step = 1; entries_[at] != nullptr; ++step) {
      at = (at + 1) & mask_;
      if (step > longest_) longest_ = step;
    }
    entries_[at] = &value;
    ++size_;
  }

  /// Finds the object with a key, or null.
  [[nodiscard]] Value* find(std::uint64_t key) const noexcept {
    Value* const* const found = locate(key);
    return found != nullptr ? *found : nullptr;
  }
  /// Removes the object with a key and returns it, or null.
  Value* remove(std::uint64_t key) noexcept {
    Value** const found = locate(key);
    if (found == nullptr) return nullptr;
    Value* const removed = std::exchange(*found, nullptr);
    if (--size_ < shrink_at_) (void)rehash(capacity() / 4);
    return removed;
  }

 private:
  [[nodiscard]] std::size_t capacity() const noexcept { return grow_at_ == 0 ? 0 : mask_ + 1; }
  /// The number of entries below which a table shrinks.
  [[nodiscard]] static std::size_t min_size(std::size_t capacity) noexcept {
    return capacity > 64 ? capacity / 20 : 0;
  }
  [[nodiscard]] std::size_t slot_of(std::uint64_t key) const noexcept {
    // Spreads neighbouring multiples of 512, because most addresses are such multiples.
    return static_cast<std::size_t>((std::rotr(key, 9) * 0x9E3779B97F4A7C15u) >> shift_);
  }
  [[nodiscard]] Value** locate(std::uint64_t key) const noexcept {
    std::size_t at = slot_of(key);
    for (std::size_t step = 0; step <= longest_; ++step) {
      if (entries_[at] != nullptr && entries_[at]->map_key() == key) return &entries_[at];
      at = (at + 1) & mask_;
    }
    return nullptr;
  }
  [[nodiscard, gnu::noinline]] bool rehash(std::size_t wanted) noexcept {
    auto* const fresh = new (std::nothrow) Value*[wanted]();
    if (fresh == nullptr) return false;
    Value** const old = entries_;
    const std::size_t count = capacity();
    entries_ = fresh;
    mask_ = wanted - 1;
    grow_at_ = wanted / 8 * 3;
    shrink_at_ = min_size(wanted);
    shift_ = 64 - static_cast<int>(std::bit_width(mask_));
    size_ = 0;
    longest_ = 0;
    for (std::size_t at = 0; at < count; ++at) {
      if (old[at] != nullptr) insert(old[at]->map_key(), *old[at]);
    }
    if (count > 0) delete[] old;
    return true;
  }

  static inline Value* nothing[2] = {};  // table of an empty map; never written

  Value** entries_ = nothing;
  std::size_t mask_ = 1;
  int shift_ = 63;
  std::size_t longest_ = 0;  // largest number of steps of an insert
  std::size_t size_ = 0;
  std::size_t grow_at_ = 0;    // number of entries at which it doubles
  std::size_t shrink_at_ = 0;  // number of entries below which it shrinks
};

}  // namespace tessera::detail
