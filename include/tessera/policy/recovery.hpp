// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>

#include <tessera/core/parameter.hpp>

namespace tessera::inline v0_1::policy {

/// Why an allocator could not grow.
enum class failure_reason : unsigned char {
  none,         ///< growth was not tried, or nothing is known to prevent it; never reported to policies
  by_limit,     ///< the limit of the growth policy would be exceeded, or an extension refused
  by_device,    ///< the device refused the memory
  by_capacity,  ///< the device is too small; reported only to policies whose `checks_capacity` is true
  by_extension,  ///< an extension refused, such as quotas. Policies are asked for the steps of by_limit, which the
                 ///< extension may change
  by_host_memory  ///< host memory for metadata ran out, so no step is taken; never reported to policies
};

/// Recovery steps, in the order in which they are tried. After a step that succeeds, reuse across
/// streams and growth are tried again. A search of the free list is a step of its own, search_again, because PyTorch does
/// not search again.
struct recovery_steps {
  /// What an allocator may do for a request that growth did not serve.
  enum class step : unsigned char {
    release_oversize,  ///< releases one free oversize block of the stream that is large enough, else the largest ones
                       ///< until they sum to the block's size; fails if they do not
    release_one,  ///< releases one idle segment, of any stream, of at least the size to grow by; fails if there is none
    release_cached,    ///< waits for pending frees, then releases every idle segment
    retry_exact_size,  ///< asks for a segment of exactly the block's size, whatever the growth policy says
    search_again  ///< waits for pending frees, if they may be waited for, and searches the free list again
  };
  std::array<step, 4> steps{};  ///< only the first `count` are taken, in their order
  std::size_t count = 0;        ///< at most four
  /// Whether release_oversize, and the eviction policy before growth or after a free, may release memory while a graph is
  /// captured. For eviction, the member of steps(by_device) counts.
  bool in_captures = false;

  /// The first step. A range-based for visits the steps in their order.
  [[nodiscard]] constexpr const step* begin() const noexcept { return steps.data(); }
  /// Behind the last step. Aborts if `count` is more than four.
  [[nodiscard]] constexpr const step* end() const noexcept {
    if (count > steps.size()) detail::fatal("Recipe::recovery: steps() returns at most four steps");
    return steps.data() + count;
  }
};

/// Decides what is tried, and in which order, when the allocator cannot grow.
///
///   p.steps(reason)   the steps; with none, the allocation fails at once
///
/// Optional members: `checks_capacity`, if true, lets the allocator predict by_capacity, too. `p.usable(capacity)`
/// are then the bytes that count as the capacity, by default all. `hint` is the text by which
/// explain() suggests a policy of tessera, on each axis [tessera/observe/oom_report.hpp]; others need none.
template <typename P>
concept recovery_policy = detail::regular<P> && requires(const P& p, failure_reason reason) {
  { p.steps(reason) } noexcept -> std::same_as<recovery_steps>;
};

/// Fails at once.
struct recover_never {
  [[nodiscard]] static constexpr recovery_steps steps(failure_reason) noexcept { return {}; }
  bool operator==(const recover_never&) const = default;
};

/// Empties the cache, then asks the device once more. Then, with `accepts_exact_size`, it asks for a segment
/// of the block's size.
///
/// Choose it unless you need PyTorch's order of steps. Set `accepts_exact_size` if segments are large: a small request
/// otherwise fails if no whole segment is available.
///   Source:  Paddle, which never asks for the exact size
template <auto AcceptsExactSize = false>
struct recover_by_emptying_cache {
  [[TESSERA_NO_UNIQUE_ADDRESS]] parameter<AcceptsExactSize> accepts_exact_size{};
  static constexpr const char* hint =  ///< what explain() suggests
      parameter<AcceptsExactSize>{}.get() ? "recover_by_emptying_cache<true>" : "recover_by_emptying_cache<>";

  [[nodiscard]] constexpr recovery_steps steps(failure_reason) const noexcept {
    using enum recovery_steps::step;
    return {{release_cached, retry_exact_size}, accepts_exact_size ? 2u : 1u};
  }
  bool operator==(const recover_by_emptying_cache&) const = default;
};

/// Releases free oversize blocks until they cover the request. If that was not enough, releases the whole
/// cache.
///
/// Choose it together with split_below, which makes blocks oversize.
///   Source:  PyTorch. With expandable segments, it uses recover_by_emptying_cache.
struct recover_by_releasing_oversize {
  [[nodiscard]] static constexpr recovery_steps steps(failure_reason) noexcept {
    using enum recovery_steps::step;
    return {{release_oversize, release_cached}, 2};
  }
  bool operator==(const recover_by_releasing_oversize&) const = default;
};

/// Releases one idle segment of at least the size of the segment that growth asks for. If there is none, or if the device refuses
/// again, releases the whole cache.
///
/// Choose it to keep most of the cache if one large segment is in the way. It takes the first stream that has such a segment,
/// and the smallest one of that stream.
///   Source:  the documentation of PyTorch's allocator. Its code does so only with max_split_size_mb, for oversize blocks of
///            the request's stream: recover_by_releasing_oversize
struct recover_by_releasing_one {
  [[nodiscard]] static constexpr recovery_steps steps(failure_reason) noexcept {
    using enum recovery_steps::step;
    return {{release_one, release_cached}, 2};
  }
  bool operator==(const recover_by_releasing_one&) const = default;
};

/// Recovers like `Recovery`. While a graph is captured, a request may release oversize blocks, and eviction may release
/// others; otherwise a capture releases no memory.
///
/// Choose it only to decide as PyTorch 2.6 does: CUDA ends a capture with an error if memory is released.
///   Source:  PyTorch's issue 159594 reports these releases; its pull request 187795 forbids those of oversize blocks
template <typename Recovery>
struct release_in_captures : Recovery {
  [[nodiscard]] constexpr recovery_steps steps(failure_reason reason) const noexcept {
    const recovery_steps chosen = Recovery::steps(reason);
    return {chosen.steps, chosen.count, true};
  }
  bool operator==(const release_in_captures&) const = default;
};

/// Recovers like `Recovery`. If `fails_fast` is set, a request fails at once if the segment that it needs
/// would exceed the limit. With failure_reason::by_capacity, it fails if that exceeds a share of the device's capacity.
/// The limit is tested first, so the share counts only if it is below the limit.
///
/// Choose it for services that prefer to reject a request rather than stall.
///
///     constexpr tessera::policy::fail_fast<tessera::policy::recover_by_emptying_cache<>, true> fails_at_limit;
///     static_assert(fails_at_limit.steps(tessera::policy::failure_reason::by_limit).count == 0);
///
///   Source:  PyTorch's throw_on_cudamalloc_oom. PyTorch 2.14 fails fast by capacity; the share is its
///            per_process_memory_fraction
template <typename Recovery, auto FailsFast = tunable<bool>{false},
          failure_reason Reason = failure_reason::by_limit, auto Share = fraction{1'000'000'000}>
struct fail_fast {
  static_assert(recovery_policy<Recovery>,
                "fail_fast<Recovery>: Recovery is a recovery policy, such as recover_never "
                "[tessera/policy/recovery.hpp]");
  /// Whether the device's capacity decides, not the limit.
  static constexpr bool checks_capacity = Reason == failure_reason::by_capacity;
  /// Decides on the steps if a request does not fail at once.
  [[TESSERA_NO_UNIQUE_ADDRESS]] Recovery inner = Recovery();  // no braces, as in policies
  [[TESSERA_NO_UNIQUE_ADDRESS]] parameter<FailsFast> fails_fast{};
  /// Of the device's capacity, with failure_reason::by_capacity.
  [[TESSERA_NO_UNIQUE_ADDRESS]] parameter<Share> share{};

  [[nodiscard]] constexpr recovery_steps steps(failure_reason reason) const noexcept {
    return is_fast(reason) ? recovery_steps{} : inner.steps(reason);
  }
  /// Whether a request fails at once, without any step.
  [[nodiscard]] constexpr bool is_fast(failure_reason reason) const noexcept {
    return reason == Reason && fails_fast;
  }
  /// The bytes of a device of `capacity` bytes that may be reserved.
  [[nodiscard]] constexpr std::size_t usable(std::size_t capacity) const noexcept {
    return share.get().of(capacity);
  }
  bool operator==(const fail_fast&) const = default;
};

/// Recovers like `Recovery`. Before the request fails, it waits for pending frees and searches the free list
/// again.
///
/// Choose it if frees are pending or other threads free blocks while memory is short. Recovery then completes
/// frees whose segments cannot go back, because they hold live blocks, too. PyTorch does not search for these
/// blocks: the request fails, although the same request then succeeds. `Recovery` has at most three steps.
///
///     using recovery = tessera::policy::last_search<tessera::recipe::pytorch<>::recovery>;
///     tessera::caching_allocator<tessera::recipe::with<tessera::recipe::pytorch<>, recovery>, tessera::provider::simulated_device> patient;
///     patient.policies().recovery.fails_fast = true;  // the numbers of the inner policy
///
///   Cost:    a search, only before a failure
///   Source:  PyTorch issues 189504 and 191302 ask for it
template <typename Recovery>
struct last_search : Recovery {
  static_assert(recovery_policy<Recovery>,
                "last_search<Recovery>: Recovery is a recovery policy, such as recover_never "
                "[tessera/policy/recovery.hpp]");
  static constexpr const char* hint = "last_search";  ///< what explain() suggests

  [[nodiscard]] constexpr recovery_steps steps(failure_reason reason) const noexcept {
    recovery_steps all = Recovery::steps(reason);
    if (fails_at_once(reason)) return all;
    if (all.count < all.steps.size()) all.steps[all.count] = recovery_steps::step::search_again;
    ++all.count;  // too many steps are a broken law
    return all;
  }
  bool operator==(const last_search&) const = default;

 private:
  [[nodiscard]] constexpr bool fails_at_once(failure_reason reason) const noexcept {
    if constexpr (requires(const Recovery& r) { r.is_fast(reason); }) return this->is_fast(reason);
    return false;
  }
};

}  // namespace tessera::inline v0_1::policy
