// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>

#include <tessera/core/stream.hpp>

namespace tessera {

/// Two numbers that name something together, in their order.
struct stream_pair {
  std::uint64_t first;
  std::uint64_t second;
  friend bool operator<(const stream_pair& a, const stream_pair& b) noexcept {
    return a.first != b.first ? a.first < b.first : a.second < b.second;
  }
};

/// Which streams come behind which work of others, by the waits that were put into them: what a provider needs to answer
/// is_behind(). Waits pass on what they wait for.
///
/// Of two streams the latest waits are known one by one, so that what waits for an older mark may seem to come behind less
/// than it does.
class stream_order {
 public:
  /// `stream`, which has been given work up to `position`, the wait included, waits for `of` up to `at`.
  void add(stream_id stream, std::uint64_t position, stream_id of, std::uint64_t at) {
    if (is_behind(stream, of, at)) return;
    waits_[{stream.handle, of.handle}].add({position, at});
    for (auto onward = waits_.lower_bound({of.handle, 0}); onward != waits_.end(); ++onward) {
      if (onward->first.first != of.handle) break;
      const std::uint64_t reached = onward->second.reached_at(at);
      const stream_id other{onward->first.second};
      if (!is_behind(stream, other, reached)) waits_[{stream.handle, other.handle}].add({position, reached});
    }
  }
  /// Whether all further work of `stream` comes behind that of `of` up to `at`.
  [[nodiscard]] bool is_behind(stream_id stream, stream_id of, std::uint64_t at) const {
    if (stream == of || at == 0) return true;
    const auto found = waits_.find({stream.handle, of.handle});
    return found != waits_.end() && found->second.latest().at >= at;
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
    ///   Requires:  there is one
    [[nodiscard]] const wait& latest() const noexcept { return waits_[count_ - 1]; }
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

  std::map<stream_pair, history> waits_;  // by the stream that waits and the one that it waits for
};

}  // namespace tessera
