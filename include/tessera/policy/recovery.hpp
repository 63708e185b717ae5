// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <concepts>
#include <cstddef>

#include <tessera/core/fatal.hpp>
#include <tessera/core/parameter.hpp>

namespace tessera {

/// Why an allocator could not grow.
enum class failure_reason : unsigned char {
  by_limit,    ///< the limit of the growth policy would be exceeded
  by_device,   ///< the device refused the memory
  by_capacity  ///< the device is too small; reported only to policies with `checks_capacity`
};

/// A step to try before an allocation fails. After the step, growth is tried again. After evict_fitting, it
/// is tried only if enough memory was freed.
enum class recovery_step : unsigned char {
  evict_fitting,  ///< releases a large enough oversize free block of the stream, or several
  evict_all,      ///< waits for pending frees, then releases every idle segment
  grow_exactly    ///< asks for a segment of exactly the block's size, whatever the growth policy says
};

/// Recovery steps, in the order in which they are tried.
struct recovery_steps {
  std::array<recovery_step, 2> steps{};
  std::size_t count = 0;

  [[nodiscard]] constexpr const recovery_step* begin() const noexcept { return steps.data(); }
  [[nodiscard]] constexpr const recovery_step* end() const noexcept {
    if (count > steps.size()) detail::fatal("Recipe::recovery: steps() returns at most two steps");
    return steps.data() + count;
  }
};

/// Decides what is tried, and in which order, when the allocator cannot grow.
///
///   p.steps(reason)   the steps; with none, the allocation fails at once
template <typename P>
concept recovery_policy = detail::regular<P> && requires(const P& p, failure_reason reason) {
  { p.steps(reason) } noexcept -> std::same_as<recovery_steps>;
};

/// Fails at once.
struct recover_never {
  [[nodiscard]] static constexpr recovery_steps steps(failure_reason) noexcept { return {}; }
  bool operator==(const recover_never&) const = default;
};

/// Empties the cache, then asks the device once more.
///
/// Choose it unless you need PyTorch's order of steps.
struct recover_by_emptying_cache {
  static constexpr const char* hint = "recover_by_emptying_cache";  ///< what explain() suggests
  [[nodiscard]] static constexpr recovery_steps steps(failure_reason) noexcept {
    return {{recovery_step::evict_all}, 1};
  }
  bool operator==(const recover_by_emptying_cache&) const = default;
};

/// Empties the cache and asks once more. Then, with `accepts_exact_size`, it asks for a segment of the
/// block's size.
///
/// Choose it with large chunks: a small request then does not fail because a whole chunk is unavailable.
///   Source:  Paddle, which never asks for the exact size
template <auto AcceptsExactSize = tunable<bool>{false}>
struct recover_with_exact_size {
  static constexpr const char* hint = "recover_with_exact_size<true>";  ///< what explain() suggests
  [[no_unique_address]] parameter<AcceptsExactSize> accepts_exact_size{};

  [[nodiscard]] constexpr recovery_steps steps(failure_reason) const noexcept {
    return {{recovery_step::evict_all, recovery_step::grow_exactly}, accepts_exact_size ? 2u : 1u};
  }
  bool operator==(const recover_with_exact_size&) const = default;
};

/// Releases oversize blocks for one segment. If that was not enough, releases the whole cache.
///
/// With `fails_fast`, a request that exceeds the limit fails at once. Choose that for services that prefer to
/// reject a request rather than stall. Without `ReleasesOversize`, the whole cache is released first.
///
///     constexpr tessera::recover_by_releasing_oversize_then_all<true> fails_at_limit;
///     static_assert(fails_at_limit.steps(tessera::failure_reason::by_limit).count == 0);
///
///   Source:  PyTorch; `fails_fast` is its throw_on_cudamalloc_oom. With expandable segments, PyTorch
///            releases the whole cache first.
template <auto FailsFast = tunable<bool>{false}, bool ReleasesOversize = true>
struct recover_by_releasing_oversize_then_all {
  [[no_unique_address]] parameter<FailsFast> fails_fast{};

  [[nodiscard]] constexpr recovery_steps steps(failure_reason reason) const noexcept {
    if (reason == failure_reason::by_limit && fails_fast) return {};
    if (!ReleasesOversize) return {{recovery_step::evict_all}, 1};
    return {{recovery_step::evict_fitting, recovery_step::evict_all}, 2};
  }
  bool operator==(const recover_by_releasing_oversize_then_all&) const = default;
};

/// Recovers like recover_by_releasing_oversize_then_all with `fails_fast`: a request that exceeds the limit
/// fails at once.
using recover_unless_over_limit = recover_by_releasing_oversize_then_all<true>;

/// Recovers like recover_by_releasing_oversize_then_all, but `fails_fast` means another case. A request that
/// exceeds the device's capacity fails at once; a request that exceeds only a lower limit does not.
///   Source:  PyTorch 2.14, with its throw_on_cudamalloc_oom
template <auto FailsFast = tunable<bool>{false}, bool ReleasesOversize = true>
struct recover_unless_over_capacity {
  static constexpr bool checks_capacity = true;
  [[no_unique_address]] parameter<FailsFast> fails_fast{};

  [[nodiscard]] constexpr recovery_steps steps(failure_reason reason) const noexcept {
    if (reason == failure_reason::by_capacity && fails_fast) return {};
    return recover_by_releasing_oversize_then_all<false, ReleasesOversize>{}.steps(reason);
  }
  bool operator==(const recover_unless_over_capacity&) const = default;
};

}  // namespace tessera
