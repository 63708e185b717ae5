// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include <tessera/core/parameter.hpp>
#include <tessera/core/types.hpp>

namespace tessera::inline v0_1::policy {

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
  std::size_t bytes = 0;  ///< that releasing it gives back
  /// Ticks of the policy's clock since it became idle. Free blocks that coalesce in an address range get the
  /// mean age of their bytes. Without a clock: number of searches of its pool since then, about one per
  /// request.
  std::uint64_t age = 0;
  std::size_t candidates = 0;                               ///< number of idle segments that may be released
  std::uint64_t total_age = 0;                              ///< sum of their ages
  std::size_t remaining = 0;                                ///< bytes still to be evicted
  std::uint64_t max_age = 0;                                ///< age of the oldest candidate
  std::size_t excess = 0;                                   ///< bytes of the candidates above bytes_to_keep
  eviction_trigger trigger = eviction_trigger::on_request;  ///< that of bytes_to_evict
  stream_id stream{};                                       ///< its key, which the streams policy gives
  std::size_t pool = 0;                                     ///< the number that the pools policy gives
  std::uint64_t reuses = 0;         ///< with counts_reuses: how often the idle segment served again
  std::uint64_t acquire_ticks = 0;  ///< with a call_clock: how long the device took to give this segment
  std::uint64_t release_ticks = 0;  ///< with a call_clock: the mean of all releases so far
  double value = 0;                 ///< with value(): that of this segment
  double min_value = 0;             ///< with value(): the lowest of the candidates

  /// Whether it is at least as old as the candidates are on average.
  ///   Source:  PyTorch's garbage_collection_threshold
  [[nodiscard]] constexpr bool is_old() const noexcept {
    return static_cast<double>(age) >= static_cast<double>(total_age) / static_cast<double>(candidates);
  }
  /// Takes the totals over all candidates, which are not about one segment.
  constexpr void set_totals(const idle_segment& all) noexcept {
    candidates = all.candidates;
    total_age = all.total_age;
    max_age = all.max_age;
    excess = all.excess;
    min_value = all.min_value;
  }
};

/// Measures the age of idle memory.
///
///   C::now()   the ticks since any fixed moment; never falls
///
/// An allocator reads it whenever a segment becomes idle, and in an address range at every free.
template <typename C>
concept age_clock = requires {
  { C::now() } noexcept -> std::same_as<std::uint64_t>;
};

}  // namespace tessera::inline v0_1::policy

namespace tessera::inline v0_1::detail {

/// A policy without a clock, or with an age_clock.
template <typename P>
concept has_no_wrong_clock = !requires { typename P::clock; } || policy::age_clock<typename P::clock>;

/// An eviction policy that ranks idle segments.
template <typename P>
concept ranks_segments = requires(const P& p, const policy::idle_segment& segment) {
  { p.value(segment) } noexcept -> std::same_as<double>;
};
template <typename P>
concept has_no_wrong_value = ranks_segments<P> || !requires { &P::value; };

/// Whether an eviction policy counts how often segments serve again.
template <typename Eviction>
inline constexpr bool counts_reuses = requires { requires bool(Eviction::counts_reuses); };
/// The clock that measures calls of the device, or void.
template <typename Eviction>
struct call_clock_of {
  using type = void;
};
template <typename Eviction>
  requires requires { typename Eviction::call_clock; }
struct call_clock_of<Eviction> {
  using type = typename Eviction::call_clock;
};

/// The clock of an eviction policy; without one, ages are counted in searches.
template <typename Eviction>
struct clock_of {
  using type = pool_searches;
};
template <typename Eviction>
  requires requires { typename Eviction::clock; }
struct clock_of<Eviction> {
  using type = typename Eviction::clock;
};

/// Stands for decay if an eviction policy limits no idle bytes by their ages.
template <typename Eviction>
class no_decay {
 public:
  static constexpr std::size_t excess_of(const Eviction&, std::size_t, std::uint64_t) noexcept { return 0; }
  static constexpr std::size_t kept_of_evicted(const Eviction&, auto) noexcept { return 0; }
  static constexpr void note_eviction(std::size_t, auto, std::uint64_t) noexcept {}
  static constexpr void restart() noexcept {}
};

template <typename Eviction>
struct decay_of_policy {
  using type = no_decay<Eviction>;
};
template <typename Eviction>
  requires requires { typename Eviction::decay; }
struct decay_of_policy<Eviction> {
  using type = typename Eviction::decay;
};
template <typename Eviction>
using decay_of = typename decay_of_policy<Eviction>::type;

/// Finds the smallest candidate size of an eviction policy by bisection. Every larger size is a candidate, too.
[[nodiscard]] constexpr std::size_t min_candidate_size(const auto& policy, const usage& now) noexcept {
  std::size_t min = min_alignment;
  if (policy.is_candidate(min, now)) return min;
  for (std::size_t step = std::size_t{1} << 60; step >= min_alignment; step /= 2) {
    if (!policy.is_candidate(min + step - min_alignment, now)) min += step;
  }
  return min;
}

}  // namespace tessera::inline v0_1::detail

namespace tessera::inline v0_1::policy {

/// Decides which idle segments are released to the device, and when.
///
///   p.bytes_to_evict(trigger, now)    bytes to release now; 0 for none
///   p.is_candidate(bytes, now)        whether an idle segment of `bytes` bytes may be released
///   p.should_evict(segment)           whether this candidate is released
///
/// should_evict is called in passes, each with new totals. A pass asks it for every candidate, in no order of
/// age. A policy may spare the later candidates of a pass by testing `remaining`. No pass follows once enough is
/// released, or after one that released nothing. A segment is released whole, so more than bytes_to_evict may be released.
///
/// Optional members. Without them, they cost nothing:
///
///   P::clock                          an age_clock; ages are then its ticks. In an address range, ages are
///                                     modulo 2^32.
///   P::counts_reuses                  if true, `reuses` of a segment is counted; not in address ranges
///   P::call_clock                     `static std::uint64_t now(const auto& provider) noexcept` returns ticks of
///                                     any unit that never fall. They measure the calls that give and take
///                                     segments; not in address ranges. In a front end with a mutex, another
///                                     thread may call the provider meanwhile
///   p.value(segment)                  what it is worth to keep a candidate, a double, from the segment's own
///                                     members. Compare `value` with `min_value` in should_evict, to release
///                                     the least valuable candidate of each pass
///   p.decay_time()                    ticks after which no idle byte stays
///   p.bytes_to_keep(bytes, age)       how many of `bytes` bytes may stay after `age` ticks; needs a clock, and
///                                     P names the mechanism: `using decay = detail::decay<P>`
///                                     [tessera/policy/evict_after.hpp]
///
/// Laws, checked by law::policy: bytes_to_evict(trigger, now) is at most now.reserved. If a segment of n
/// bytes is a candidate, every larger size is too. value(segment) is a number, and the same for the same segment.
/// bytes_to_keep(n, age) is at most n, does not rise with the
/// age, and is 0 from decay_time() on.
template <typename P>
concept eviction_policy =
    detail::regular<P> && detail::has_no_wrong_clock<P> && detail::has_no_wrong_value<P> &&
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
  [[TESSERA_NO_UNIQUE_ADDRESS]] parameter<Threshold> threshold{};

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

/// If more than `threshold` of the limit is reserved, releases all old idle segments before growth, in passes until less is
/// reserved or a pass releases nothing. One pass may release far more than needed, as in PyTorch.
///
/// Choose it on a shared device, with a limit. A segment is old if its age is at least the average age of the
/// candidates. Segments of up to `Ignored` bytes stay. A threshold of 0 switches the policy off. With
/// `NeedsLimit`, it is off until a limit is set. In PyTorch, set_per_process_memory_fraction sets the limit.
///
///     constexpr tessera::policy::evict_idle_above<tessera::percent(80)> above_80;
///     constexpr tessera::usage now{.reserved = 70_GiB, .limit = 80_GiB};
///     static_assert(above_80.bytes_to_evict(tessera::policy::eviction_trigger::before_growth, now) == 6_GiB);
///
///   Source:  PyTorch's garbage_collection_threshold, which ignores the 2 MiB segments of small blocks
template <auto Threshold = tunable<fraction>{fraction{}}, bool NeedsLimit = false,
          std::size_t Ignored = 2_MiB>
struct evict_idle_above {
  static_assert(parameter<Threshold>{}.get().billionths <= percent(100).billionths,
                "evict_idle_above<Threshold>: Threshold is at most percent(100) of the limit");
  [[TESSERA_NO_UNIQUE_ADDRESS]] parameter<Threshold> threshold{};

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
    return segment.is_old();
  }
  bool operator==(const evict_idle_above&) const = default;
};

}  // namespace tessera::inline v0_1::policy
