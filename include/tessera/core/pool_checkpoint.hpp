// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

#include <tessera/core/private_pool.hpp>
#include <tessera/core/stream.hpp>

namespace tessera {

namespace detail {

/// An array in host memory. Its capacity is fixed by reserve(). std::swap and std::exchange would make it slow
/// to compile.
template <typename T>
class host_array {
 public:
  host_array() noexcept = default;
  host_array(host_array&& other) noexcept : items_(other.items_), size_(other.size_) { other.forget(); }
  host_array& operator=(host_array&& other) noexcept {
    if (this == &other) return *this;
    delete[] items_;
    items_ = other.items_;
    size_ = other.size_;
    other.forget();
    return *this;
  }
  ~host_array() { delete[] items_; }

  /// Takes memory for `capacity` items. Returns false if host memory ran out.
  ///   Requires:  it was not called before
  [[nodiscard]] bool reserve(std::size_t capacity) noexcept {
    items_ = new (std::nothrow) T[capacity];
    return items_ != nullptr;
  }
  /// Appends an item.
  ///   Requires:  a preceding reserve() for it
  void add(const T& item) noexcept { items_[size_++] = item; }

  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] bool empty() const noexcept { return size_ == 0; }
  [[nodiscard]] const T& operator[](std::size_t i) const noexcept { return items_[i]; }
  [[nodiscard]] const T* begin() const noexcept { return items_; }
  [[nodiscard]] const T* end() const noexcept { return items_ + size_; }
  [[nodiscard]] T* begin() noexcept { return items_; }
  [[nodiscard]] T* end() noexcept { return items_ + size_; }

 private:
  void forget() noexcept {
    items_ = nullptr;
    size_ = 0;
  }

  T* items_ = nullptr;
  std::size_t size_ = 0;
};

/// A block with memory, as a checkpoint records it.
struct recorded_block {
  std::uintptr_t address;
  std::size_t bytes;
  stream_id stream;  ///< the key of its free list
  bool is_live;
  bool is_lent;  ///< it served a request of the default pools
};

/// A segment or a range, as a checkpoint records it.
struct recorded_segment {
  std::uintptr_t address;
  std::size_t pool;         ///< its pool, of those that the recipe has
  std::size_t first_block;  ///< the index of its first block
  std::size_t blocks;       ///< how many blocks it has, at least one
};

/// The state of a private pool.
struct recorded_pool {
  const void* owner = nullptr;  ///< identifies the allocator
  pool_id pool{};
  host_array<recorded_segment> segments{};
  host_array<recorded_block> blocks{};  ///< of all segments, in each in the order of addresses
  /// If free blocks are not ordered by size: the addresses of the free blocks, the newest first.
  host_array<void*> newest_free{};
};

}  // namespace detail

/// The state of a private pool at one time: its segments, and in each the sizes of the blocks and which of
/// them are live. Converts to true if it holds a state.
///
/// caching_allocator::checkpoint_pool makes it, and restore_pool brings the state back, any number of times.
/// It holds host memory only. It may outlive the pool and the allocator.
class pool_checkpoint {
 public:
  /// Holds no state.
  pool_checkpoint() noexcept = default;
  /// Holds no state, for a reason.
  explicit pool_checkpoint(const char* why) noexcept : why_(why) {}
  explicit pool_checkpoint(detail::recorded_pool&& state) noexcept
      : state_(std::move(state)), why_(nullptr) {}
  /// Leaves `other` without a state.
  pool_checkpoint(pool_checkpoint&& other) noexcept : state_(std::move(other.state_)), why_(other.why_) {
    other.why_ = is_empty;
  }
  pool_checkpoint& operator=(pool_checkpoint&& other) noexcept {
    state_ = std::move(other.state_);
    const char* const why = other.why_;
    other.why_ = is_empty;
    why_ = why;
    return *this;
  }

  [[nodiscard]] explicit operator bool() const noexcept { return why_ == nullptr; }
  /// Why it holds no state, as text; null if it holds one.
  [[nodiscard]] const char* why() const noexcept { return why_; }
  /// The pool whose state it holds; the default value if it holds none.
  [[nodiscard]] pool_id pool() const noexcept { return why_ == nullptr ? state_.pool : pool_id{}; }
  /// The state as the allocator recorded it.
  [[nodiscard]] const detail::recorded_pool& state() const noexcept { return state_; }

 private:
  static constexpr const char* is_empty = "the checkpoint is empty";

  detail::recorded_pool state_;
  const char* why_ = is_empty;
};

/// The outcome of a call that restores a checkpoint. Converts to true if the call worked.
struct restore_result {
  detail::host_array<void*> freed{};      ///< the blocks that were live before, and were freed
  detail::host_array<void*> allocated{};  ///< the blocks that the checkpoint recorded as live, live again
  const char* why = nullptr;              ///< why the call failed, as text; then nothing has changed
  [[nodiscard]] explicit operator bool() const noexcept { return why == nullptr; }
};

}  // namespace tessera
