// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

namespace tessera::detail {

/// Finds objects by a 64-bit key that each object carries: `std::uint64_t map_key() const`. It does not own
/// the objects.
///
/// It uses open addressing with linear probing and is at most three eighths full, with many objects half. A removed entry leaves a hole, which ends no
/// search. A search ends after the largest number of steps that an insert ever took.
///
/// It grows and shrinks a part at each call, so that no call takes long. Both tables have the order of hashes: entries
/// whose first slot in the old table is below a border are in the new table, all others in the old one.
///   Cost:  one probe in nearly all cases. While it grows or shrinks, a call moves the entries of 32 slots
template <typename Value>
class key_map {
 public:
  key_map() = default;
  key_map(const key_map&) = delete;
  key_map& operator=(const key_map&) = delete;
  ~key_map() {
    if (capacity() > 0) delete[] now_.slots;
    delete[] next_.slots;
  }

  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] std::size_t metadata_bytes() const noexcept {
    return (capacity() + (is_moving() ? next_.mask + 1 : 0)) * sizeof(Value*);
  }

  /// Makes sure that the next insert succeeds. Returns false if host memory ran out.
  [[nodiscard]] bool reserve_one() noexcept { return size_ < grow_at_ || make_room(); }
  /// Makes sure that the next `count` inserts succeed, even if objects are removed before. Until
  /// end_reserve(), the table does not shrink. Returns false if host memory ran out.
  ///   Cost:  linear in the objects
  [[nodiscard]] bool hold_reserve(std::size_t count) noexcept {
    std::size_t wanted = (std::max)(capacity(), min_capacity);
    while (most_in(wanted) < size_ + count) wanted *= 2;
    if (!move_to(wanted)) return false;
    shrink_at_ = 0;
    return true;
  }
  /// Ends hold_reserve().
  ///   Cost:  linear in the objects
  void end_reserve() noexcept {
    (void)move_to((std::min)(capacity(), (std::max)(std::bit_ceil(size_ * 4), min_capacity)));
    set_limits();
  }

  /// Inserts an object.
  ///   Requires:  a preceding reserve_one()
  ///   Requires:  `key` is the object's key, and no other object in the map has it
  void insert(std::uint64_t key, Value& value) noexcept {
    const std::size_t home = now_.home_of(hash_of(key));
    ++size_;
    if (home < moved_) return insert_in_next(hash_of(key), value);
    std::size_t at = home;
    for (std::size_t step = 1; now_.slots[at] != nullptr; ++step) {
      at = (at + 1) & now_.mask;
      if (step > now_.longest) now_.longest = step;
    }
    now_.slots[at] = &value;
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
    if (--size_ < shrink_at_) shrink();
    return removed;
  }

 private:
  struct table {
    Value** slots;
    std::size_t mask;
    int shift;
    std::size_t longest;  // largest number of steps of an insert

    [[nodiscard]] std::size_t home_of(std::uint64_t hash) const noexcept {
      return static_cast<std::size_t>(hash >> shift);
    }
    [[nodiscard]] Value** locate(std::size_t at, std::uint64_t key) const noexcept {
      for (std::size_t step = 0; step <= longest; ++step) {
        if (slots[at] != nullptr && slots[at]->map_key() == key) return &slots[at];
        at = (at + 1) & mask;
      }
      return nullptr;
    }
  };
  static constexpr std::size_t min_capacity = 16;
  static constexpr std::size_t slots_a_call = 32;  // that are moved while it grows or shrinks

  [[nodiscard]] std::size_t capacity() const noexcept { return now_.slots == nothing ? 0 : now_.mask + 1; }
  [[nodiscard]] bool is_moving() const noexcept { return next_.slots != nullptr; }
  [[nodiscard]] static std::uint64_t hash_of(std::uint64_t key) noexcept {
    // Spreads neighbouring multiples of 512, because most addresses are such multiples.
    return std::rotr(key, 9) * 0x9E3779B97F4A7C15u;
  }
  [[nodiscard]] Value** locate(std::uint64_t key) const noexcept {
    Value** const found = now_.locate(now_.home_of(hash_of(key)), key);
    return found != nullptr ? found : locate_in_next(key);
  }
  [[nodiscard, gnu::noinline]] Value** locate_in_next(std::uint64_t key) const noexcept {
    const std::uint64_t hash = hash_of(key);
    return now_.home_of(hash) < moved_ ? next_.locate(next_.home_of(hash), key) : nullptr;
  }

  [[nodiscard, gnu::noinline]] bool make_room() noexcept {
    if (!is_moving()) return begin_move((std::max)(capacity() * 2, min_capacity));
    move_some();
    return true;
  }
  [[gnu::noinline]] void shrink() noexcept {
    if (is_moving()) {
      move_some();
    } else if (!begin_move(capacity() / 4)) {
      shrink_at_ = size_ / 2;  // without host memory for the small table, the large one stays
    }
  }
  /// Begins to move all entries to a table of another size. Returns false if host memory ran out.
  [[nodiscard]] bool begin_move(std::size_t wanted) noexcept {
    auto* const fresh = new (std::nothrow) Value*[wanted];
    if (fresh == nullptr) return false;
    next_ = {fresh, wanted - 1, 64 - std::countr_zero(wanted), 0};
    cleared_ = 0;
    // Each insert and each remove comes by now.
    grow_at_ = 0;
    shrink_at_ = ~std::size_t{0};
    if (capacity() == 0) {
      clear_to(wanted);
      end_move();
    } else {
      move_some();
    }
    return true;
  }
  /// Moves the entries whose homes are the next few slots.
  void move_some() noexcept {
    const std::size_t first = moved_;
    moved_ = first + (std::min)(slots_a_call, capacity() - first);
    clear_behind();
    for (std::size_t at = first; at < moved_ + now_.longest; ++at) {
      Value*& entry = now_.slots[at & now_.mask];
      if (entry == nullptr) continue;
      const std::uint64_t hash = hash_of(entry->map_key());
      if (now_.home_of(hash) - first < moved_ - first) insert_in_next(hash, *std::exchange(entry, nullptr));
    }
    if (moved_ == capacity()) end_move();
  }
  void end_move() noexcept {
    if (capacity() > 0) delete[] now_.slots;
    now_ = next_;
    next_ = {};
    moved_ = 0;
    set_limits();
  }
  /// The most entries of a table. A small table is emptier, because its searches are then shorter; in a large one,
  /// memory matters more.
  [[nodiscard]] static std::size_t most_in(std::size_t capacity) noexcept {
    return capacity < std::size_t{1} << 18 ? capacity / 8 * 3 : capacity / 2;
  }
  void set_limits() noexcept {
    grow_at_ = most_in(capacity());
    shrink_at_ = capacity() > 64 ? capacity() / 16 : 0;
  }
  /// Moves all entries to a table of another size.
  [[nodiscard]] bool move_to(std::size_t wanted) noexcept {
    while (is_moving()) move_some();
    if (wanted == capacity()) return true;
    if (!begin_move(wanted)) return false;
    while (is_moving()) move_some();
    return true;
  }
  [[gnu::noinline]] void insert_in_next(std::uint64_t hash, Value& value) noexcept {
    const std::size_t home = next_.home_of(hash);
    for (std::size_t step = 0;; ++step) {
      if (home + step >= cleared_) clear_to(home + step + 1);
      Value*& slot = next_.slots[(home + step) & next_.mask];
      if (slot != nullptr) continue;
      slot = &value;
      if (step > next_.longest) {
        next_.longest = step;
        clear_behind();
      }
      return;
    }
  }
  /// Clears the slots of the new table that a search may reach.
  void clear_behind() noexcept {
    const std::uint64_t last = (static_cast<std::uint64_t>(moved_) << now_.shift) - 1;
    clear_to(next_.home_of(last) + next_.longest + 1);
  }
  void clear_to(std::size_t end) noexcept {
    end = (std::min)(end, next_.mask + 1);
    if (cleared_ >= end) return;
    std::fill(next_.slots + cleared_, next_.slots + end, nullptr);
    cleared_ = end;
  }

  static inline Value* nothing[2] = {};  // table of an empty map; never written

  table now_{nothing, 1, 63, 0};
  table next_{};
  std::size_t moved_ = 0;  // entries with a home below are in next_
  std::size_t size_ = 0;
  std::size_t grow_at_ = 0;    // number of entries at which it doubles
  std::size_t shrink_at_ = 0;  // number of entries below which it shrinks
  std::size_t cleared_ = 0;    // slots of next_ that have a value
};

}  // namespace tessera::detail
