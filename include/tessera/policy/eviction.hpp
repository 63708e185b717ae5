// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>

#include <tessera/core/bytes.hpp>
#include <tessera/core/chunk_plan.hpp>
#include <tessera/core/fraction.hpp>
#include <tessera/core/parameter.hpp>
#include <tessera/core/regular.hpp>
#include <tessera/core/usage.hpp>

namespace tessera {

/// When eviction is considered.
enum class eviction_trigger : unsigned char {
  before_growth,     ///< nothing cached fits, the device is about to be asked
  after_free,        ///< a block has just become free
  after_synchronize  ///< a stream was waited for, by an adaptor that offers that
};

/// A cached segment of which nothing is in use.
struct idle_segment {
  std::size_t bytes;
  std::uint64_t age;  ///< searches of its pool since it became free
};

/// The idle segments that a policy considers, together.
struct idle_survey {
  std::size_t count = 0;
  std::uint64_t total_age = 0;
  std::size_t missing = 0;  ///< bytes of what is wanted that have not gone yet
};

/// Decides which idle segments go back to the device, and when.
///
///   p.bytes_to_evict(when, now)       how many bytes should go; 0 for nothing to do
///   p.considers(bytes, now)           whether a segment of `bytes` is a candidate
///   p.should_evict(segment, survey)   whether this candidate goes; asked again in passes, with a new survey each,
///                                     until enough has gone or a pass frees nothing
///
/// Laws, checked by law::eviction: nothing goes where nothing is reserved, and what is larger than a candidate is one.
template <typename P>
concept eviction_policy =
    regular<P> && requires(const P& p, eviction_trigger when, const usage& now, std::size_t bytes,
                           const idle_segment& segment, const idle_survey& survey) {
      { p.bytes_to_evict(when, now) } noexcept -> std::same_as<std::size_t>;
      { p.considers(bytes, now) } noexcept -> std::same_as<bool>;
      { p.should_evict(segment, survey) } noexcept -> std::same_as<bool>;
    };

/// Keeps everything until recovery or the user asks.
struct evict_never {
  [[nodiscard]] static constexpr std::size_t bytes_to_evict(eviction_trigger, const usage&) noexcept {
    return 0;
  }
  [[nodiscard]] static constexpr bool considers(std::size_t, const usage&) noexcept { return false; }
  [[nodiscard]] static constexpr bool should_evict(const idle_segment&, const idle_survey&) noexcept {
    return false;
  }
  bool operator==(const evict_never&) const = default;
};

/// Gives every segment back as soon as nothing in it is used.
struct evict_at_free {
  [[nodiscard]] static constexpr std::size_t bytes_to_evict(eviction_trigger when,
                                                            const usage& now) noexcept {
    return when == eviction_trigger::after_free ? now.cached : 0;
  }
  [[nodiscard]] static constexpr bool considers(std::size_t, const usage&) noexcept { return true; }
  [[nodiscard]] static constexpr bool should_evict(const idle_segment&, const idle_survey&) noexcept {
    return true;
  }
  bool operator==(const evict_at_free&) const = default;
};

/// Gives a segment of more than `kept` bytes back as soon as nothing in it is used, and keeps the others.
///   Cost:  a free looks at each free block of more than that size
template <auto Kept = tunable<std::size_t>{unlimited}>
struct evict_at_free_above {
  [[no_unique_address]] parameter<Kept> kept{};

  [[nodiscard]] constexpr std::size_t bytes_to_evict(eviction_trigger when, const usage& now) const noexcept {
    return when == eviction_trigger::after_free && now.cached > kept ? now.cached : 0;
  }
  [[nodiscard]] constexpr bool considers(std::size_t bytes, const usage&) const noexcept {
    return bytes > kept;
  }
  [[nodiscard]] static constexpr bool should_evict(const idle_segment&, const idle_survey&) noexcept {
    return true;
  }
  bool operator==(const evict_at_free_above&) const = default;
};

/// Gives every idle segment back before growing, after a free, at both times or never.
///   Source:  Paddle's free_when_no_cache_hit and free_idle_chunk
template <auto BeforeGrowth = tunable<bool>{false}, auto AtFree = tunable<bool>{false}>
struct evict_idle_chunks {
  [[no_unique_address]] parameter<BeforeGrowth> before_growth{};
  [[no_unique_address]] parameter<AtFree> at_free{};

  [[nodiscard]] constexpr std::size_t bytes_to_evict(eviction_trigger when, const usage& now) const noexcept {
    const bool goes = when == eviction_trigger::after_free ? at_free.get() : before_growth.get();
    return goes ? now.cached : 0;
  }
  [[nodiscard]] static constexpr bool considers(std::size_t, const usage&) noexcept { return true; }
  [[nodiscard]] static constexpr bool should_evict(const idle_segment&, const idle_survey&) noexcept {
    return true;
  }
  bool operator==(const evict_idle_chunks&) const = default;
};

/// Gives segments back at once that are larger than any chunk of a plan, and keeps the chunks. A device may take chunks
/// for multiples of `Step`, so that what is larger by less than that stays, too.
///   Source:  Paddle's naive_best_fit
template <auto Plan = tunable<chunk_plan>{chunk_plan{}}, std::size_t Step = 1_MiB>
struct evict_direct_at_free {
  static_assert(Step > 0, "evict_direct_at_free<Plan, Step>: Step is a number of bytes above 0");
  [[no_unique_address]] parameter<Plan> plan{};

  [[nodiscard]] constexpr std::size_t bytes_to_evict(eviction_trigger when, const usage& now) const noexcept {
    return when == eviction_trigger::after_free && considers(now.cached, now) ? now.cached : 0;
  }
  [[nodiscard]] constexpr bool considers(std::size_t bytes, const usage& now) const noexcept {
    const chunk_plan& chosen = plan.get();
    return bytes > align_up(chosen.largest_pooled(now.limit), Step);
  }
  [[nodiscard]] static constexpr bool should_evict(const idle_segment&, const idle_survey&) noexcept {
    return true;
  }
  bool operator==(const evict_direct_at_free&) const = default;
};

/// Before growing past `threshold` of the limit, gives back idle segments at least as old as the average one; those of
/// `Ignored` bytes and less stay. A threshold of 0 switches it off. Where it `NeedsLimit`, it works only once a limit was set.
///
///     constexpr tessera::evict_idle_above<tessera::percent(80)> above_80;
///     constexpr tessera::usage now{.reserved = 70_GiB, .limit = 80_GiB};
///     static_assert(above_80.bytes_to_evict(tessera::eviction_trigger::before_growth, now) == 6_GiB);
///
///   Source:  PyTorch's garbage_collection_threshold, which leaves the 2 MiB segments of small blocks alone
template <auto Threshold = tunable<fraction>{fraction{}}, std::size_t Ignored = 2_MiB,
          bool NeedsLimit = false>
struct evict_idle_above {
  static_assert(parameter<Threshold>{}.get().billionths <= percent(100).billionths,
                "evict_idle_above<Threshold>: a share of the limit is at most percent(100)");
  [[no_unique_address]] parameter<Threshold> threshold{};

  [[nodiscard]] constexpr std::size_t bytes_to_evict(eviction_trigger when, const usage& now) const noexcept {
    if (when != eviction_trigger::before_growth || threshold.get() == fraction{}) return 0;
    if (NeedsLimit && !now.has_limit) return 0;
    const std::size_t kept = threshold.get().of(now.limit);
    return now.reserved > kept ? now.reserved - kept : 0;
  }
  [[nodiscard]] static constexpr bool considers(std::size_t bytes, const usage&) noexcept {
    return bytes > Ignored;
  }
  [[nodiscard]] static constexpr bool should_evict(const idle_segment& segment,
                                                   const idle_survey& survey) noexcept {
    const double average = static_cast<double>(survey.total_age) / static_cast<double>(survey.count);
    return static_cast<double>(segment.age) >= average;
  }
  bool operator==(const evict_idle_above&) const = default;
};
/// The same once a limit was set, of which PyTorch's set_per_process_memory_fraction is one.
template <auto Threshold = tunable<fraction>{fraction{}}>
using evict_idle_like_pytorch = evict_idle_above<Threshold, 2_MiB, true>;

/// Gives back what is reserved above `threshold` bytes whenever a stream was waited for, as far as it is idle.
///   Source:  the release threshold of CUDA's memory pools
template <auto Threshold = tunable<std::size_t>{0}>
struct evict_at_synchronize_above {
  [[no_unique_address]] parameter<Threshold> threshold{};

  [[nodiscard]] constexpr std::size_t bytes_to_evict(eviction_trigger when, const usage& now) const noexcept {
    return when == eviction_trigger::after_synchronize && now.reserved > threshold ? now.reserved - threshold
                                                                                   : 0;
  }
  [[nodiscard]] static constexpr bool considers(std::size_t bytes, const usage&) noexcept {
    return bytes > 0;
  }
  [[nodiscard]] static constexpr bool should_evict(const idle_segment&, const idle_survey& survey) noexcept {
    return survey.missing > 0;
  }
  bool operator==(const evict_at_synchronize_above&) const = default;
};

}  // namespace tessera
