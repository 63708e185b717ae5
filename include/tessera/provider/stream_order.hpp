// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <new>
#include <utility>

#include <tessera/core/types.hpp>

namespace tessera::provider {

/// Records the waits between streams and implements is_ordered_after(), including waits through other
/// streams.
///
/// Use it in a provider whose device cannot answer is_ordered_after(). Call reserve() before the device's
/// wait call, so that add() can always record the wait:
///
///     tessera::provider::stream_order order;
///     const tessera::stream_id copies{1}, compute{2};
///     if (!order.reserve(compute, copies)) return;  // make_wait gives false
///     // the wait is the fifth task of compute, and waits for the first three tasks of copies
///     (void)order.add(compute, 5, copies, 3);
///     std::printf("%d\n", order.is_ordered_after(compute, copies, 2));
///
/// It keeps the latest 32 waits of each pair of streams. is_ordered_after() may return false if only an older
/// wait orders the streams.
///
///   Cost:  logarithmic in the pairs of streams that ever waited; 0.5 KiB of host memory for each
class stream_order {
 public:
  stream_order() noexcept = default;
  stream_order(stream_order&& from) noexcept { *this = std::move(from); }
  stream_order& operator=(stream_order&& from) noexcept {
    std::swap(pairs_, from.pairs_);
    std::swap(count_, from.count_);
    std::swap(capacity_, from.capacity_);
    return *this;
  }
  ~stream_order() {
    for (std::size_t i = 0; i < count_; ++i) delete pairs_[i];
    delete[] pairs_;
  }

  /// Allocates the host memory that add() needs to record a wait of `stream` for `other`; false if host
  /// memory ran out.
  [[nodiscard]] bool reserve(stream_id stream, stream_id other) noexcept {
    if (stream == other) return true;
    if (!create({stream.handle, other.handle})) return false;
    for (std::size_t i = first_of(other); i < count_ && pairs_[i]->key.first == other.handle; ++i) {
      const stream_pair onward = pairs_[i]->key;
      if (onward.second != stream.handle && !create({stream.handle, onward.second})) return false;
      i = lower_bound(onward);  // the index may have changed
    }
    return true;
  }
  /// Records that the task of `stream` at `position` waits for `other` up to `other_position`.
  ///   Returns:  false if host memory ran out and nothing was recorded; never false after reserve()
  bool add(stream_id stream, std::uint64_t position, stream_id other, std::uint64_t other_position) noexcept {
    if (is_ordered_after(stream, other, other_position)) return true;
    if (!reserve(stream, other)) return false;
    find({stream.handle, other.handle})->add({position, other_position});
    for (std::size_t i = first_of(other); i < count_ && pairs_[i]->key.first == other.handle; ++i) {
      const std::uint64_t reached = pairs_[i]->waits.reached_at(other_position);
      const stream_id third{pairs_[i]->key.second};
      if (!is_ordered_after(stream, third, reached))
        find({stream.handle, third.handle})->add({position, reached});
    }
    return true;
  }
  /// Whether all further work of `stream` runs after the work of `other` up to `position`.
  [[nodiscard]] bool is_ordered_after(stream_id stream, stream_id other,
                                      std::uint64_t position) const noexcept {
    if (stream == other || position == 0) return true;
    const history* const found = find({stream.handle, other.handle});
    return found != nullptr && found->latest() >= position;
  }

 private:
  /// The handles of the waiting stream and of the awaited stream.
  using stream_pair = std::pair<std::uint64_t, std::uint64_t>;
  struct wait {
    std::uint64_t position;  ///< of the waiting stream
    std::uint64_t at;        ///< of the awaited stream
  };
  /// The waits of one stream for another stream, by ascending awaited position.
  class history {
   public:
    void add(wait next) noexcept {
      if (count_ == waits_.size()) {
        for (std::size_t i = 1; i < count_; ++i) waits_[i - 1] = waits_[i];
        --count_;
      }
      waits_[count_++] = next;
    }
    /// The position of the other stream that further work waits for; 0 without a wait.
    [[nodiscard]] std::uint64_t latest() const noexcept { return count_ > 0 ? waits_[count_ - 1].at : 0; }
    /// The position of the other stream that the work at `position` waits for; 0 if that is unknown.
    [[nodiscard]] std::uint64_t reached_at(std::uint64_t position) const noexcept {
      std::size_t last = count_;
      while (last > 0 && waits_[last - 1].position > position) --last;
      return last > 0 ? waits_[last - 1].at : 0;
    }

   private:
    std::array<wait, 32> waits_;
    std::size_t count_ = 0;
  };
  /// The waits of one pair of streams.
  struct pair {
    stream_pair key;
    history waits;
  };

  /// The index of a key, or the index at which to insert it.
  [[nodiscard]] std::size_t lower_bound(stream_pair key) const noexcept {
    std::size_t from = 0;
    for (std::size_t to = count_; from < to;) {
      const std::size_t middle = from + (to - from) / 2;
      if (pairs_[middle]->key < key) {
        from = middle + 1;
      } else {
        to = middle;
      }
    }
    return from;
  }
  [[nodiscard]] std::size_t first_of(stream_id stream) const noexcept {
    return lower_bound({stream.handle, 0});
  }
  [[nodiscard]] history* find(stream_pair key) const noexcept {
    const std::size_t at = lower_bound(key);
    return at < count_ && pairs_[at]->key == key ? &pairs_[at]->waits : nullptr;
  }
  /// Makes a pair without waits, unless it exists; false if host memory ran out.
  [[nodiscard]] bool create(stream_pair key) noexcept {
    if (find(key) != nullptr) return true;
    if (count_ == capacity_) {
      const std::size_t capacity = capacity_ != 0 ? 2 * capacity_ : 8;
      auto** const grown = new (std::nothrow) pair*[capacity];
      if (grown == nullptr) return false;
      for (std::size_t i = 0; i < count_; ++i) grown[i] = pairs_[i];
      delete[] std::exchange(pairs_, grown);
      capacity_ = capacity;
    }
    auto* const created = new (std::nothrow) pair{key, {}};
    if (created == nullptr) return false;
    const std::size_t at = lower_bound(key);
    for (std::size_t i = count_++; i > at; --i) pairs_[i] = pairs_[i - 1];
    pairs_[at] = created;
    return true;
  }

  pair** pairs_ = nullptr;  // sorted by key
  std::size_t count_ = 0;
  std::size_t capacity_ = 0;
};

}  // namespace tessera::provider
