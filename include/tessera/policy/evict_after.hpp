// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ctime>
#include <type_traits>
#include <utility>
#if !defined(CLOCK_MONOTONIC)
#include <chrono>
#endif

#include <tessera/policy/eviction.hpp>

namespace tessera::inline v0_1::detail {

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

}  // namespace tessera::inline v0_1::detail

namespace tessera::inline v0_1::policy {

/// Counts milliseconds, also while the program is suspended. It may advance in steps of up to 10 ms.
///   Cost:  6 ns on Linux, where it reads a coarse clock; 24 ns for a precise one
struct steady_milliseconds {
  [[nodiscard]] static std::uint64_t now() noexcept {
#if defined(CLOCK_MONOTONIC)
    ::timespec time{};  // <chrono> is slow to compile
#if defined(CLOCK_MONOTONIC_COARSE)
    (void)::clock_gettime(CLOCK_MONOTONIC_COARSE, &time);
#else
    (void)::clock_gettime(CLOCK_MONOTONIC, &time);
#endif
    return static_cast<std::uint64_t>(time.tv_sec) * 1000 +
           static_cast<std::uint64_t>(time.tv_nsec) / 1'000'000;
#else
    const auto time = std::chrono::steady_clock::now().time_since_epoch();
    return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(time).count());
#endif
  }
};

/// How the idle bytes that may stay fall until the end of the time.
enum class decay_curve : unsigned char {
  step,   ///< all may stay until the end
  smooth  ///< half may stay after half of the time; the fall is slow at first and at the end
};

/// Releases the segments that were idle for `time` ticks of `Clock`, when evict_idle() is called.
///
/// Choose it if other programs need the memory between the phases of this one. Call evict_idle() after each
/// phase, or from a thread; without calls, nothing is released. With decay_curve::smooth, the idle bytes fall
/// along jemalloc's curve. The oldest segments then go before the time, as many as it takes to be at or below
/// the curve. A time of `unlimited` switches the policy off. In a recipe, it replaces any other eviction, such
/// as that of garbage_collection_threshold.
///
///     using recipe = tessera::recipe::with<tessera::recipe::pytorch<>, tessera::policy::evict_after<200>>;  // milliseconds
///     tessera::caching_allocator<recipe, tessera::provider::simulated_device> shared;
///     shared.deallocate(shared.allocate(1_GiB));
///     shared.evict_idle();  // releases nothing yet
///
///   Cost:    a read of the clock whenever a segment becomes idle; in an address range, at every free
///   Source:  mimalloc's purge_delay; jemalloc's dirty_decay_ms for decay_curve::smooth
template <auto Time = tunable<std::uint64_t>{10'000}, decay_curve Curve = decay_curve::step,
          age_clock Clock = steady_milliseconds>
struct evict_after {
  static_assert(std::in_range<std::uint64_t>(parameter<Time>{}.get()),
                "evict_after<Time>: Time is a whole number of ticks, not below 0");
  using clock = Clock;
  /// The bytes that may stay idle by age; nothing with decay_curve::step.
  using decay = std::conditional_t<Curve == decay_curve::smooth, detail::decay<evict_after>,
                                   detail::no_decay<evict_after>>;
  [[TESSERA_NO_UNIQUE_ADDRESS]] parameter<Time> time{};

  [[nodiscard]] static constexpr std::size_t bytes_to_evict(eviction_trigger trigger,
                                                            const usage& now) noexcept {
    return trigger == eviction_trigger::on_request ? now.cached : 0;
  }
  [[nodiscard]] static constexpr bool is_candidate(std::size_t bytes, const usage&) noexcept {
    return bytes > 0;
  }
  [[nodiscard]] constexpr bool should_evict(const idle_segment& segment) const noexcept {
    return segment.age >= decay_time() || (segment.age >= segment.max_age && segment.excess > 0);
  }
  [[nodiscard]] constexpr std::uint64_t decay_time() const noexcept {
    return static_cast<std::uint64_t>(time.get());
  }
  [[nodiscard]] constexpr std::size_t bytes_to_keep(std::size_t bytes, std::uint64_t age) const noexcept
    requires(Curve == decay_curve::smooth)
  {
    if (age >= decay_time()) return 0;
    const double left = 1 - static_cast<double>(age) / static_cast<double>(decay_time());
    const double share = left * left * left * (10 + left * (6 * left - 15));
    const auto kept = static_cast<std::size_t>(share * static_cast<double>(bytes));
    return kept < bytes ? kept : bytes;
  }
  bool operator==(const evict_after&) const = default;
};

}  // namespace tessera::inline v0_1::policy
