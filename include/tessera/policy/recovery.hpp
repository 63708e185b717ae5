// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <concepts>
#include <cstddef>

#include <tessera/core/fatal.hpp>
#include <tessera/core/parameter.hpp>
#include <tessera/core/regular.hpp>

namespace tessera {

/// Who said no to growth.
enum class failure_reason : unsigned char {
  by_limit,
  by_device,
  by_capacity  ///< no request was made, as the device is smaller; said to policies that `know_capacity`
};

/// What can be tried before an allocation fails; then growth is asked and tried again, after evict_fitting only if it
/// freed enough.
enum class recovery_step : unsigned char {
  evict_fitting,  ///< give back one oversize cached block of the stream that is large enough, or several together
  evict_all,      ///< wait for pending frees, then give back every idle segment
  grow_exactly  ///< take a segment of just the block's size, whatever growth wants
};

/// Steps in the order in which they are tried.
struct recovery_steps {
  std::array<recovery_step, 2> steps{};
  std::size_t count = 0;

  [[nodiscard]] constexpr const recovery_step* begin() const noexcept { return steps.data(); }
  [[nodiscard]] constexpr const recovery_step* end() const noexcept {
    if (count > steps.size()) fatal("Recipe::recovery: there are at most two steps");
    return steps.data() + count;
  }
};

/// Decides what is tried, in what order, when growth was refused.
///
///   p.steps(why)   the steps; none means that the allocation fails at once
template <typename P>
concept recovery_policy = regular<P> && requires(const P& p, failure_reason why) {
  { p.steps(why) } noexcept -> std::same_as<recovery_steps>;
};

/// Fails at once.
struct recover_never {
  [[nodiscard]] static constexpr recovery_steps steps(failure_reason) noexcept { return {}; }
  bool operator==(const recover_never&) const = default;
};

/// Gives everything cached back, then asks once more.
struct recover_by_emptying_the_cache {
  [[nodiscard]] static constexpr recovery_steps steps(failure_reason) noexcept {
    return {{recovery_step::evict_all}, 1};
  }
  bool operator==(const recover_by_emptying_the_cache&) const = default;
};

/// Gives everything cached back and asks once more; where it `settles` for less, then asks for just what the block needs,
/// so that a small request does not fail for want of a large chunk.
///   Source:  Paddle, which never settles for less
template <auto Settles = tunable<bool>{false}>
struct recover_like_paddle {
  [[no_unique_address]] parameter<Settles> settles{};

  [[nodiscard]] constexpr recovery_steps steps(failure_reason) const noexcept {
    return {{recovery_step::evict_all, recovery_step::grow_exactly}, settles ? 2u : 1u};
  }
  bool operator==(const recover_like_paddle&) const = default;
};

/// Gives back what one segment needs, and everything if that was not enough; only everything where it is not `Sparing`. Where
/// it `rejects` and it was the limit that refused, fails at once: for services that would rather drop a request than stall.
///
///     constexpr tessera::recover_by_releasing_oversize_then_all<true> rather_fails;
///     static_assert(rather_fails.steps(tessera::failure_reason::by_limit).count == 0);
///
///   Source:  PyTorch, with its throw_on_cudamalloc_oom; where segments are expandable, it is not sparing
template <auto Rejects = tunable<bool>{false}, bool Sparing = true>
struct recover_by_releasing_oversize_then_all {
  [[no_unique_address]] parameter<Rejects> rejects{};

  [[nodiscard]] constexpr recovery_steps steps(failure_reason why) const noexcept {
    if (why == failure_reason::by_limit && rejects) return {};
    if (!Sparing) return {{recovery_step::evict_all}, 1};
    return {{recovery_step::evict_fitting, recovery_step::evict_all}, 2};
  }
  bool operator==(const recover_by_releasing_oversize_then_all&) const = default;
};
using recover_unless_over_limit = recover_by_releasing_oversize_then_all<true>;

/// The same, but where it `rejects`, a request fails at once that exceeds what the device has, and what a lower limit refused
/// does not.
///   Source:  PyTorch 2.14, with its throw_on_cudamalloc_oom
template <auto Rejects = tunable<bool>{false}, bool Sparing = true>
struct recover_unless_over_capacity {
  static constexpr bool know_capacity = true;
  [[no_unique_address]] parameter<Rejects> rejects{};

  [[nodiscard]] constexpr recovery_steps steps(failure_reason why) const noexcept {
    if (why == failure_reason::by_capacity && rejects) return {};
    return recover_by_releasing_oversize_then_all<false, Sparing>{}.steps(why);
  }
  bool operator==(const recover_unless_over_capacity&) const = default;
};

}  // namespace tessera
