// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>

namespace tessera::detail {

/// An eviction policy that limits idle bytes by their ages.
template <typename P>
concept decaying_policy = requires {
  typename P::clock;
  typename P::decay;
} && requires(const P& p, std::size_t bytes, std::uint64_t age) {
  { p.decay_time() } noexcept -> std::same_as<std::uint64_t>;
  { p.bytes_to_keep(bytes, age) } noexcept -> std::same_as<std::size_t>;
};

/// Remembers the evicted bytes by the time at which they became idle. Of the bytes that became idle at one
/// time, the evicted ones are a part of those that must go. Without them, each call would apply the curve to
/// the rest of the call before.
///
/// The decay time has 200 epochs. The bytes of an epoch have the age of its middle.
///   Source:  the backlog of jemalloc's decay
template <typename Eviction>
class decay {
 public:
  /// The bytes of a candidate that must go, considered alone.
  [[nodiscard]] static std::size_t excess_of(const Eviction& policy, std::size_t bytes,
                                             std::uint64_t age) noexcept {
    const std::size_t kept = policy.bytes_to_keep(bytes, age);
    return kept < bytes ? bytes - kept : 0;
  }
  /// The bytes that could stay of those that were evicted. As many others may stay instead.
  [[nodiscard]] std::size_t kept_of_evicted(const Eviction& policy, std::uint64_t now) noexcept {
    const std::uint64_t time = policy.decay_time();
    const std::uint64_t interval = time / epochs + (time % epochs != 0);
    if (interval != interval_) restart();
    interval_ = interval;
    if (interval == 0) return 0;
    advance(now / interval);
    std::size_t kept = 0;
    for (std::uint64_t back = 0; back < epochs && back <= newest_; ++back) {
      const std::uint64_t middle = (newest_ - back) * interval + interval / 2;
      kept += policy.bytes_to_keep(evicted_[(newest_ - back) % epochs], middle < now ? now - middle : 0);
    }
    return kept;
  }
  /// Notes that bytes of this age were evicted.
  ///   Requires:  a preceding kept_of_evicted()
  void note_eviction(std::size_t bytes, std::uint64_t now, std::uint64_t age) noexcept {
    if (interval_ == 0) return;
    const std::uint64_t epoch = (now - age) / interval_;
    advance(epoch);
    if (newest_ - epoch < epochs) evicted_[epoch % epochs] += bytes;
  }
  void restart() noexcept { evicted_ = {}; }

 private:
  static constexpr std::uint64_t epochs = 200;

  /// Forgets the epochs that lie 200 or more before `epoch`.
  void advance(std::uint64_t epoch) noexcept {
    if (epoch >= newest_ + epochs) {
      restart();
      newest_ = epoch;
    }
    while (newest_ < epoch) evicted_[++newest_ % epochs] = 0;
  }

  std::array<std::size_t, epochs> evicted_{};
  std::uint64_t newest_ = 0;    // number of the newest epoch
  std::uint64_t interval_ = 0;  // ticks of an epoch
};

}  // namespace tessera::detail
