// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>

#include <tessera/core/stream.hpp>

namespace tessera {

/// Two numbers that name something together, in their order.
struct stream_pair {
  std::uint64_t first;
  std::uint64_t second;
  bool operator==(const stream_pair&) const = default;
  friend bool operator<(const stream_pair& a, const stream_pair& b) noexcept {
    return a.first != b.first ? a.first < b.first : a.second < b.second;
  }
};

/// Which streams come behind which work of others, by the waits that were put into them: what a provider needs to answer
/// is_behind(). Waits pass on what they wait for.
///
/// Of two streams the latest waits are known one by one, so that what waits for an older mark may seem to come behind less
/// than it does. A provider reserves before it tells the device to wait, so that each wait that is there is known:
///
///     tessera::stream_order order;
///     const tessera::stream_id copies{1}, compute{2};
///     if (!order.reserve(compute, copies)) return;  // let_wait gives false
///     // the device: compute, given 5 tasks with the wait that comes now, waits for what copies was given up to its third
///     (void)order.add(compute, 5, copies, 3);
///     std::printf("%d\n", order.is_behind(compute, copies, 2));
///
///   Cost:  logarithmic in the pairs of streams that ever waited; half a KiB of host memory for each
class stream_order {
 public:
  /// Takes the host memory that noting a wait of `stream` for `of` needs; false where there is none.
  [[nodiscard]] bool reserve(stream_id stream, stream_id of) noexcept {
    if (stream == of) return true;
    if (!make({stream.handle, of.handle})) return false;
    for (std::size_t i = first_of(of); i < count_ && pairs_[i]->key.first == of.handle; ++i) {
      const stream_pair onward = pairs_[i]->key;
      if (onward.second != stream.handle && !make({stream.handle, onward.second})) return false;
      i = lower_bound(onward);  // which may have moved
    }
    return true;
  }
  /// `stream`, which has been given work up to `position`, the wait included, waits for `of` up to `at`; false where host
  /// memory ran out, which it does not after reserve, and nothing is noted.
  bool add(stream_id stream, std::uint64_t position, stream_id of, std::uint64_t at) noexcept {
    if (is_behind(stream, of, at)) return true;
    if (!reserve(stream, of)) return false;
    find({stream.handle, of.handle})->add({position, at});
    for (std::size_t i = first_of(of); i < count_ && pairs_[i]->key.first == of.handle; ++i) {
      const std::uint64_t reached = pairs_[i]->waits.reached_at(at);
      const stream_id other{pairs_[i]->key.second};
      if (!is_behind(stream, other, reached)) find({stream.handle, other.handle})->add({position, reached});
    }
    return true;
  }
  /// Whether all further work of `stream` comes behind that of `of` up to `at`.
  [[nodiscard]] bool is_behind(stream_id stream, stream_id of, std::uint64_t at) const noexcept {
    if (stream == of || at == 0) return true;
    const history* const found = find({stream.handle, of.handle});
    return found != nullptr && found->latest() >= at;
  }

 private:
  struct wait {
    std::uint64_t position;  ///< of the stream that waits
    std::uint64_t at;        ///< of the one that it waits for
  };
  /// The waits of one stream for another, each for more than those before.
  class history {
   public:
    void add(wait next) noexcept {
      if (count_ == waits_.size()) {
        for (std::size_t i = 1; i < count_; ++i) waits_[i - 1] = waits_[i];
        --count_;
      }
      waits_[count_++] = next;
    }
    /// How far further work is behind the other stream's; 0 where there is no wait.
    [[nodiscard]] std::uint64_t latest() const noexcept { return count_ > 0 ? waits_[count_ - 1].at : 0; }
    /// How far the work at a position is behind the other stream's; 0 where that is not known.
    [[nodiscard]] std::uint64_t reached_at(std::uint64_t position) const noexcept {
      std::size_t last = count_;
      while (last > 0 && waits_[last - 1].position > position) --last;
      return last > 0 ? waits_[last - 1].at : 0;
    }

   private:
    std::array<wait, 32> waits_;
    std::size_t count_ = 0;
  };
  /// The stream that waits and the one that it waits for.
  struct pair {
    stream_pair key;
    history waits;
  };
  using pair_list = std::unique_ptr<std::unique_ptr<pair>[]>;

  /// Where a key is, or would be.
  [[nodiscard]] std::size_t lower_bound(stream_pair key) const noexcept {
    const auto* const begin = pairs_.get();
    const auto is_below = [](const std::unique_ptr<pair>& p, const stream_pair& k) { return p->key < k; };
    return static_cast<std::size_t>(std::lower_bound(begin, begin + count_, key, is_below) - begin);
  }
  [[nodiscard]] std::size_t first_of(stream_id stream) const noexcept {
    return lower_bound({stream.handle, 0});
  }
  [[nodiscard]] history* find(stream_pair key) const noexcept {
    const std::size_t at = lower_bound(key);
    return at < count_ && pairs_[at]->key == key ? &pairs_[at]->waits : nullptr;
  }
  /// Makes a pair that has not waited, if it is not there; false where host memory ran out.
  [[nodiscard]] bool make(stream_pair key) noexcept {
    if (find(key) != nullptr) return true;
    std::unique_ptr<pair> made(new (std::nothrow) pair{key, {}});
    if (made == nullptr) return false;
    if (count_ == room_) {
      const std::size_t more = room_ != 0 ? 2 * room_ : 8;
      pair_list grown(new (std::nothrow) std::unique_ptr<pair>[more]);
      if (grown == nullptr) return false;
      std::move(pairs_.get(), pairs_.get() + count_, grown.get());
      pairs_ = std::move(grown);
      room_ = more;
    }
    const std::size_t at = lower_bound(key);
    std::move_backward(pairs_.get() + at, pairs_.get() + count_, pairs_.get() + count_ + 1);
    pairs_[at] = std::move(made);
    ++count_;
    return true;
  }

  pair_list pairs_;  // in the order of keys
  std::size_t count_ = 0;
  std::size_t room_ = 0;
};

}  // namespace tessera
