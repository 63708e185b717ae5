// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <new>

namespace tessera::engine {

/// Maps 64-bit keys (addresses, stream handles) to objects that it does not own.
///
/// Open addressing with linear probing; at most a quarter full, so that probes seldom collide, and it shrinks again when nearly empty.
///   Cost:  one probe nearly always; the host heap is asked when the table doubles or halves
template <typename Value>
class key_map {
 public:
  key_map() = default;
  key_map(const key_map&) = delete;
  key_map& operator=(const key_map&) = delete;
  ~key_map() { delete[] entries_; }

  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] std::size_t footprint() const noexcept { return capacity() * sizeof(entry); }

  /// Makes sure that the next insert succeeds; false where host memory ran out.
  [[nodiscard]] bool reserve_one() noexcept {
    if (size_ < grow_at_) return true;
    return rehash(entries_ == nullptr ? 16 : capacity() * 2);
  }

  ///   Requires:  a reserve_one() that covers it; the key is not in the map; value is not null
  void insert(std::uint64_t key, Value* value) noexcept {
    std::size_t at = slot_of(key);
    while (entries_[at].value != nullptr) at = (at + 1) & mask_;
    entries_[at] = {key, value};
    ++size_;
  }

  /// The value of the key, or null.
  [[nodiscard]] Value* find(std::uint64_t key) const noexcept {
    if (entries_ == nullptr) return nullptr;
    return entries_[position(key)].value;
  }

  /// Takes the key out and returns its value, or null.
  Value* remove(std::uint64_t key) noexcept {
    if (entries_ == nullptr) return nullptr;
    std::size_t hole = position(key);
    Value* const removed = entries_[hole].value;
    if (removed == nullptr) return nullptr;
    // Entries behind the hole move up unless that would put them before the slot their key hashes to.
    for (std::size_t at = (hole + 1) & mask_; entries_[at].value != nullptr; at = (at + 1) & mask_) {
      const std::size_t wanted = slot_of(entries_[at].key);
      if (((at - wanted) & mask_) >= ((at - hole) & mask_)) {
        entries_[hole] = entries_[at];
        hole = at;
      }
    }
    entries_[hole].value = nullptr;
    --size_;
    if (size_ < shrink_at_) (void)rehash(capacity() / 4);
    return removed;
  }

  /// Calls f(Value&) for each; f must not change the map.
  template <typename F>
  void for_each(F f) const {
    for (std::size_t at = 0; at < capacity(); ++at) {
      if (entries_[at].value != nullptr) f(*entries_[at].value);
    }
  }

 private:
  struct entry {
    std::uint64_t key;
    Value* value;
  };

  [[nodiscard]] std::size_t capacity() const noexcept { return entries_ == nullptr ? 0 : mask_ + 1; }
  [[nodiscard]] std::size_t slot_of(std::uint64_t key) const noexcept {
    return static_cast<std::size_t>((key * 0x9E3779B97F4A7C15u) >> shift_);
  }
  [[nodiscard]] std::size_t position(std::uint64_t key) const noexcept {
    std::size_t at = slot_of(key);
    while (entries_[at].value != nullptr && entries_[at].key != key) at = (at + 1) & mask_;
    return at;
  }
  [[nodiscard, gnu::noinline]] bool rehash(std::size_t wanted) noexcept {
    auto* const fresh = new (std::nothrow) entry[wanted]();
    if (fresh == nullptr) return false;
    entry* const old = entries_;
    const std::size_t count = capacity();
    entries_ = fresh;
    mask_ = wanted - 1;
    grow_at_ = wanted / 4;
    shrink_at_ = wanted > 64 ? wanted / 32 : 0;
    shift_ = 64 - static_cast<int>(std::bit_width(mask_));
    size_ = 0;
    for (std::size_t at = 0; at < count; ++at) {
      if (old[at].value != nullptr) insert(old[at].key, old[at].value);
    }
    delete[] old;
    return true;
  }

  entry* entries_ = nullptr;
  std::size_t mask_ = 0;
  std::size_t size_ = 0;
  std::size_t grow_at_ = 0;    // entries from which on it doubles
  std::size_t shrink_at_ = 0;  // entries below which it shrinks
  int shift_ = 0;
};

}  // namespace tessera::engine
