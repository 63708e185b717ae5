// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include <tessera/core/usage.hpp>

namespace tessera::trace {

/// Where an allocator's memory stood after each event of a program, in a bounded number of buckets of equally many events:
/// as soon as they are full, two become one. What was least and most within a bucket stays exact.
class timeline {
 public:
  struct range {
    std::size_t least = 0;
    std::size_t most = 0;
    bool operator==(const range&) const = default;
  };
  /// In bytes, in the words of `usage`.
  struct bucket {
    range requested, live, pending, cached, reserved;
    bool operator==(const bucket&) const = default;
  };

  ///   Requires:  an even number from 2 on; there are at least half as many buckets, once there are as many events
  explicit timeline(std::size_t most_buckets = 4096) noexcept : most_(most_buckets) {}

  /// Notes where the memory stands after one more event.
  ///   Cost:  constant, amortized
  void note(const usage& now) {
    if (events_ == most_ * width_) join_pairs();
    const bucket one{{now.requested, now.requested},
                     {now.live, now.live},
                     {now.pending, now.pending},
                     {now.cached, now.cached},
                     {now.reserved, now.reserved}};
    if (events_ % width_ == 0) {
      buckets_.push_back(one);
    } else {
      buckets_.back() = joined(buckets_.back(), one);
    }
    if (events_ == 0 || now.reserved > worst_.reserved) {
      worst_ = now;
      worst_event_ = events_;
    }
    ++events_;
  }

  [[nodiscard]] const std::vector<bucket>& buckets() const noexcept { return buckets_; }
  /// How many events a bucket stands for, a power of two; the last one may stand for fewer.
  [[nodiscard]] std::size_t width() const noexcept { return width_; }
  [[nodiscard]] std::size_t events() const noexcept { return events_; }
  /// The first event after which the most was reserved, counted from 0, and how things stood then.
  [[nodiscard]] std::size_t worst_event() const noexcept { return worst_event_; }
  [[nodiscard]] const usage& worst() const noexcept { return worst_; }

 private:
  [[nodiscard]] static range joined(range a, range b) noexcept {
    return {(std::min)(a.least, b.least), (std::max)(a.most, b.most)};
  }
  [[nodiscard]] static bucket joined(const bucket& a, const bucket& b) noexcept {
    return {joined(a.requested, b.requested), joined(a.live, b.live), joined(a.pending, b.pending),
            joined(a.cached, b.cached), joined(a.reserved, b.reserved)};
  }
  void join_pairs() noexcept {
    const std::size_t pairs = buckets_.size() / 2;
    for (std::size_t i = 0; i < pairs; ++i) buckets_[i] = joined(buckets_[2 * i], buckets_[2 * i + 1]);
    buckets_.resize(pairs);
    width_ *= 2;
  }

  std::size_t most_;
  std::size_t width_ = 1;
  std::size_t events_ = 0;
  std::size_t worst_event_ = 0;
  usage worst_{};
  std::vector<bucket> buckets_;
};

}  // namespace tessera::trace
