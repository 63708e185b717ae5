// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>

#include <tessera/core/stream.hpp>
#include <tessera/provider/range_map.hpp>

namespace tessera {

/// Records the waits between streams and implements is_ordered_after(), including waits through other
/// streams.
///
/// Use it in a provider whose device cannot answer is_ordered_after(). Call reserve() before the device's
/// wait call, so that add() can always record the wait:
///
///     tessera::stream_order order;
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
  /// Allocates the host memory that add() needs to record a wait of `stream` for `other`; false if host
  /// memory ran out.
  [[nodiscard]] bool reserve(stream_id stream, stream_id other) noexcept {
    if (stream == other) return true;
    return detail::try_run([&] {
      waits_.try_emplace({stream.handle, other.handle});
      for (auto i = waits_of(other); i != waits_.end() && i->first.first == other.handle; ++i) {
        const std::uint64_t third = i->first.second;
        if (third != stream.handle) waits_.try_emplace({stream.handle, third});
      }
    });
  }
  /// Records that the task of `stream` at `position` waits for `other` up to `other_position`.
  ///   Returns:  false if host memory ran out and nothing was recorded; never false after reserve()
  bool add(stream_id stream, std::uint64_t position, stream_id other, std::uint64_t other_position) noexcept {
    if (is_ordered_after(stream, other, other_position)) return true;
    if (!reserve(stream, other)) return false;
    waits_.find({stream.handle, other.handle})->second.add({position, other_position});
    for (auto i = waits_of(other); i != waits_.end() && i->first.first == other.handle; ++i) {
      const std::uint64_t reached = i->second.reached_at(other_position);
      const stream_id third{i->first.second};
      if (!is_ordered_after(stream, third, reached))
        waits_.find({stream.handle, third.handle})->second.add({position, reached});
    }
    return true;
  }
  /// Whether all further work of `stream` runs after the work of `other` up to `position`.
  [[nodiscard]] bool is_ordered_after(stream_id stream, stream_id other,
                                      std::uint64_t position) const noexcept {
    if (stream == other || position == 0) return true;
    const auto found = waits_.find({stream.handle, other.handle});
    return found != waits_.end() && found->second.latest() >= position;
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

  /// The first pair whose waiting stream is `stream`, or a later one.
  [[nodiscard]] std::map<stream_pair, history>::iterator waits_of(stream_id stream) noexcept {
    return waits_.lower_bound({stream.handle, 0});
  }

  std::map<stream_pair, history> waits_;
};

}  // namespace tessera
