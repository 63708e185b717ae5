// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <utility>

#include <tessera/core/bytes.hpp>
#include <tessera/core/clock.hpp>
#include <tessera/core/parameter.hpp>
#include <tessera/core/statistics.hpp>

namespace tessera {

/// The events at which an allocator considers eviction.
enum class eviction_trigger : unsigned char {
  before_growth,      ///< no free block of the request's list fits; before reuse across streams and growth
  after_free,         ///< blocks may have become free: after a free, a poll, a trim or a recovery step
  after_synchronize,  ///< synchronize(stream) was called; only recipes that reuse across streams have it
  on_request          ///< the user or a thread called evict_idle()
};

/// Memory that may be released, and totals over all candidates: a segment without live or pending blocks. In
/// an address range, a free block with the bytes of the chunks that lie wholly inside it.
struct idle_segment {
  std::size_t bytes = 0;
  /// Ticks of the policy's clock since it became idle. Free blocks that coalesce in an address range get the
  /// mean age of their bytes. Without a clock: number of searches of its pool since then, about one per
  /// request.
  std::uint64_t age = 0;
  std::size_t candidates = 0;   ///< number of idle segments that may be released
  std::uint64_t total_age = 0;  ///< sum of their ages
  std::size_t remaining = 0;    ///< bytes still to be evicted
  std::uint64_t max_age = 0;    ///< age of the oldest candidate
  std::size_t excess = 0;       ///< bytes of the candidates beyond those that bytes_to_keep lets stay
  eviction_trigger trigger = eviction_trigger::on_request;  ///< that of bytes_to_evict
};

/// Decides which idle segments are released to the device, and when.
///
///   p.bytes_to_evict(trigger, now)    bytes to release now; 0 for none
///   p.is_candidate(bytes, now)        whether an idle segment of `bytes` bytes may be released
///   p.should_evict(segment)           whether this candidate is released
///
/// should_evict is called in passes, each with new totals. A pass asks it for every candidate, in no order of
/// age. A policy that tests `remaining` may refuse the later candidates of a pass. No pass follows once enough is
/// released, or after one that released nothing. A segment is released whole, so more than bytes_to_evict may be released.
///
/// Optional members. Without them, they cost nothing:
///
///   P::clock                          an age_clock; ages are then its ticks. In an address range, ages are
///                                     modulo 2^32.
///   p.decay_time()                    ticks after which no idle byte stays
///   p.bytes_to_keep(bytes, age)       how many of `bytes` bytes may stay after `age` ticks; needs a clock
///
/// Laws, checked by law::policy: bytes_to_evict(trigger, now) is at most now.reserved. If a segment of n
/// bytes is a candidate, every larger size is too. bytes_to_keep(n, age) is at most n, does not rise with the
/// age, and is 0 from decay_time() on.
template <typename P>
concept eviction_policy = detail::regular<P> && detail::has_no_wrong_clock<P> &&
                          requires(const P& p, eviction_trigger trigger, const usage& now, std::size_t bytes,
                                   const idle_segment& segment) {
                            { p.bytes_to_evict(trigger, now) } noexcept -> std::same_as<std::size_t>;
                            { p.is_candidate(bytes, now) } noexcept -> std::same_as<bool>;
                            { p.should_evict(segment) } noexcept -> std::same_as<bool>;
                          };

/// Keeps every segment until recovery or the user releases it.
///
/// Choose it unless other programs need the memory that is cached.
struct evict_never {
  [[nodiscard]] static constexpr std::size_t bytes_to_evict(eviction_trigger, const usage&) noexcept {
    return 0;
  }
  [[nodiscard]] static constexpr bool is_candidate(std::size_t, const usage&) noexcept { return false; }
  [[nodiscard]] static constexpr bool should_evict(const idle_segment&) noexcept { return false; }
  bool operator==(const evict_never&) const = default;
};

/// Releases segments of more than `threshold` bytes as soon as they are idle.
///
/// With the default, it releases every segment: this reserves the least memory and calls the device most
/// often. Choose a threshold if large requests are rare and small requests are frequent.
///   Cost:    each free visits every free block above the threshold
///   Source:  PyTorch's pinned_max_cached_size_mb
template <auto Threshold = std::size_t{0}>
struct evict_at_free {
  [[no_unique_address]] parameter<Threshold> threshold{};

  [[nodiscard]] constexpr std::size_t bytes_to_evict(eviction_trigger trigger,
                                                     const usage& now) const noexcept {
    return trigger == eviction_trigger::after_free && now.cached > threshold ? now.cached : 0;
  }
  [[nodiscard]] constexpr bool is_candidate(std::size_t bytes, const usage&) const noexcept {
    return bytes > threshold;
  }
  [[nodiscard]] static constexpr bool should_evict(const idle_segment&) noexcept { return true; }
  bool operator==(const evict_at_free&) const = default;
};

/// Releases every idle segment before growth, after a free, or both.
///   Source:  Paddle's free_when_no_cache_hit and free_idle_chunk
template <auto BeforeGrowth = tunable<bool>{false}, auto AtFree = tunable<bool>{false}>
struct evict_idle_segments {
  [[no_unique_address]] parameter<BeforeGrowth> before_growth{};
  [[no_unique_address]] parameter<AtFree> at_free{};

  [[nodiscard]] constexpr std::size_t bytes_to_evict(eviction_trigger trigger,
                                                     const usage& now) const noexcept {
    const bool evicts = (trigger == eviction_trigger::after_free && at_free.get()) ||
                        (trigger == eviction_trigger::before_growth && before_growth.get());
    return evicts ? now.cached : 0;
  }
  [[nodiscard]] static constexpr bool is_candidate(std::size_t, const usage&) noexcept { return true; }
  [[nodiscard]] static constexpr bool should_evict(const idle_segment&) noexcept { return true; }
  bool operator==(const evict_idle_segments&) const = default;
};

/// Releases segments larger than every chunk of `plan` as soon as they are idle, and keeps the chunks.
///
/// Choose it together with grow_by_plan, with the same plan, if large sizes rarely repeat. `Step` is the
/// granularity in bytes to which a device rounds chunks. A segment that is larger by less than `Step` stays.
///   Source:  Paddle's naive_best_fit
template <auto Plan = tunable<chunk_plan>{chunk_plan{}}, std::size_t Step = 1_MiB>
struct evict_at_free_above_plan {
  static_assert(Step > 0, "evict_at_free_above_plan<Plan, Step>: Step is a number of bytes above 0");
  [[no_unique_address]] parameter<Plan> plan{};

  [[nodiscard]] constexpr std::size_t bytes_to_evict(eviction_trigger trigger,
                                                     const usage& now) const noexcept {
    return trigger == eviction_trigger::after_free && is_candidate(now.cached, now) ? now.cached : 0;
  }
  [[nodiscard]] constexpr bool is_candidate(std::size_t bytes, const usage& now) const noexcept {
    return bytes > align_up(plan.get().largest_pooled(now.limit), Step);
  }
  [[nodiscard]] static constexpr bool should_evict(const idle_segment&) noexcept { return true; }
  bool operator==(const evict_at_free_above_plan&) const = default;
};

/// Releases all old idle segments before growth if more than `threshold` of the limit is reserved. Repeats
/// this until less is reserved, or until a pass releases nothing. One pass may release far more than needed.
///
/// Choose it on a shared device, with a limit. A segment is old if its age is at least the average age of the
/// candidates. Segments of up to `Ignored` bytes stay. A threshold of 0 switches the policy off. With
/// `NeedsLimit`, it is off until a limit is set. In PyTorch, set_per_process_memory_fraction sets the limit.
///
///     constexpr tessera::evict_idle_above<tessera::percent(80)> above_80;
///     constexpr tessera::usage now{.reserved = 70_GiB, .limit = 80_GiB};
///     static_assert(above_80.bytes_to_evict(tessera::eviction_trigger::before_growth, now) == 6_GiB);
///
///   Source:  PyTorch's garbage_collection_threshold, which ignores the 2 MiB segments of small blocks
template <auto Threshold = tunable<fraction>{fraction{}}, bool NeedsLimit = false,
          std::size_t Ignored = 2_MiB>
struct evict_idle_above {
  static_assert(parameter<Threshold>{}.get().billionths <= percent(100).billionths,
                "evict_idle_above<Threshold>: Threshold is at most percent(100) of the limit");
  [[no_unique_address]] parameter<Threshold> threshold{};

  [[nodiscard]] constexpr std::size_t bytes_to_evict(eviction_trigger trigger,
                                                     const usage& now) const noexcept {
    if (trigger != eviction_trigger::before_growth || threshold.get() == fraction{}) return 0;
    if (NeedsLimit && !now.has_limit) return 0;
    const std::size_t max_reserved = threshold.get().of(now.limit);
    return now.reserved > max_reserved ? now.reserved - max_reserved : 0;
  }
  [[nodiscard]] static constexpr bool is_candidate(std::size_t bytes, const usage&) noexcept {
    return bytes > Ignored;
  }
  [[nodiscard]] static constexpr bool should_evict(const idle_segment& segment) noexcept {
    const double average = static_cast<double>(segment.total_age) / static_cast<double>(segment.candidates);
    return static_cast<double>(segment.age) >= average;
  }
  bool operator==(const evict_idle_above&) const = default;
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
///     using recipe = tessera::with<tessera::pytorch<>, tessera::evict_after<200>>;  // milliseconds
///     tessera::caching_allocator<recipe, tessera::simulated_device> shared;
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
  [[no_unique_address]] parameter<Time> time{};

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

/// Releases idle segments when a stream is synchronized, while more than `threshold` bytes are reserved.
///   Source:  the release threshold of CUDA's memory pools
template <auto Threshold = tunable<std::size_t>{0}>
struct evict_at_synchronize_above {
  [[no_unique_address]] parameter<Threshold> threshold{};

  [[nodiscard]] constexpr std::size_t bytes_to_evict(eviction_trigger trigger,
                                                     const usage& now) const noexcept {
    if (trigger != eviction_trigger::after_synchronize) return 0;
    return now.reserved > threshold ? now.reserved - threshold : 0;
  }
  [[nodiscard]] static constexpr bool is_candidate(std::size_t bytes, const usage&) noexcept {
    return bytes > 0;
  }
  [[nodiscard]] static constexpr bool should_evict(const idle_segment& segment) noexcept {
    return segment.remaining > 0;
  }
  bool operator==(const evict_at_synchronize_above&) const = default;
};

}  // namespace tessera
