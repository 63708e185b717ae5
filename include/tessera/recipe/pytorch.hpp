// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include <tessera/config/grammar.hpp>
#include <tessera/config/pytorch.hpp>
#include <tessera/core/bytes.hpp>
#include <tessera/core/fatal.hpp>
#include <tessera/recipe/cuda_async.hpp>
#include <tessera/recipe/family.hpp>
#include <tessera/recipe/pinned.hpp>
#include <tessera/recipe/recipe.hpp>

namespace tessera {
namespace detail {

/// Makes the decisions of the native CUDA caching allocator of PyTorch 2.6. A configuration string may
/// use every key of mid-2026.
///
/// Settings, off by default:
///   * `rounding.table`: roundup_power2_divisions
///   * `split.max`: max_split_size_mb
///   * `eviction.threshold`: garbage_collection_threshold
///   * `growth.limit`: the memory fraction
struct pytorch_native final {
  using rounding = round_to_divisions<512>;
  using pools = pool_small_and_large<1_MiB>;
  using streams = reuse_on_same_stream;
  using split = split_below<>;
  using pages = back_with<page_plan::normal_only>;
  using growth = grow_by_segments<>;
  using eviction = evict_idle_above<tunable(fraction{}), true>;
  using recovery = with_fail_fast<recover_by_releasing_oversize>;

  [[nodiscard]] static constexpr bool accepts(const config::pytorch::settings& settings) noexcept {
    return !settings.async_backend && !settings.expandable_segments;
  }
  /// Returns the policies for settings that this recipe accepts; aborts for others.
  [[nodiscard]] static constexpr policies<pytorch_native> configured(
      const config::pytorch::settings& settings) noexcept;
};
static_assert(recipe<pytorch_native>);

/// Makes the decisions of PyTorch 2.6 with expandable_segments. It maps pages into ranges of addresses, which
/// blocks of any size share.
///
/// Choose it if the device has virtual memory and sizes vary. Oversize blocks are split. With `split.max`, a
/// request below it does not use a free block of that size or more. A larger request does not use a block
/// with `split.slack` or more to spare. Growth ignores both rules: it may take a refused free block if
/// unmapped addresses follow it, as it is or with pages mapped behind it. The key
/// garbage_collection_threshold is ignored, as in PyTorch. But if you set `eviction.threshold` directly, idle
/// pages are released.
struct pytorch_expandable final {
  using rounding = round_to_divisions<512>;
  using pools = pool_small_and_large<1_MiB>;
  using streams = reuse_on_same_stream;
  using split = split_below<tunable(unlimited), tunable(20_MiB), 1_MiB, 0>;
  using pages = back_with<page_plan::normal_only>;
  using growth = grow_by_mapping<>;
  using eviction = evict_idle_above<tunable(fraction{}), true>;
  using recovery = with_fail_fast<recover_by_emptying_cache<>>;

  [[nodiscard]] static constexpr bool accepts(const config::pytorch::settings& settings) noexcept {
    return !settings.async_backend && settings.expandable_segments;
  }
  [[nodiscard]] static constexpr policies<pytorch_expandable> configured(
      const config::pytorch::settings& settings) noexcept;
};
static_assert(recipe<pytorch_expandable>);

/// Returns the policies of a recipe for PyTorch's settings.
template <typename Recipe>
[[nodiscard]] constexpr policies<Recipe> with_pytorch_settings(
    const config::pytorch::settings& settings) noexcept {
  policies<Recipe> chosen{};
  chosen.rounding.table = settings.roundup;
  chosen.split.max = settings.max_split_size;
  chosen.split.slack = settings.max_non_split_rounding;
  chosen.growth.large = settings.large_segment_size;
  chosen.growth.limit = settings.memory_fraction;
  // With expandable_segments, PyTorch accepts the key but releases no pages.
  if (!settings.expandable_segments) chosen.eviction.threshold = settings.garbage_collection_threshold;
  chosen.recovery.fails_fast = settings.throw_on_oom;
  return chosen;
}
constexpr policies<pytorch_native> pytorch_native::configured(
    const config::pytorch::settings& settings) noexcept {
  if (!accepts(settings)) detail::fatal("pytorch_native::configured: settings for another recipe");
  return detail::with_pytorch_settings<pytorch_native>(settings);
}
constexpr policies<pytorch_expandable> pytorch_expandable::configured(
    const config::pytorch::settings& settings) noexcept {
  if (!accepts(settings)) detail::fatal("pytorch_expandable::configured: settings for another recipe");
  auto chosen = detail::with_pytorch_settings<pytorch_expandable>(settings);
  chosen.growth.range = settings.expandable_segments_reserve;
  return chosen;
}

/// Makes the decisions of the native allocator of PyTorch 2.14. It differs from 2.6 in these rules:
///
///   * Among free blocks of equal size, a block in the oldest segment serves.
///   * A memory fraction is rounded to the nearest byte. A fraction of 1 is no limit, so garbage collection
///     needs a lower one.
///   * With throw_on_cudamalloc_oom, a request fails at once if reserved memory and its segment would exceed
///     the device. A request that exceeds only the memory fraction goes through recovery.
///
/// It has the settings of pytorch_native.
///   Source:  CUDACachingAllocator.cpp of mid-2026 (BlockComparatorSizeCounterAddress, setMemoryFraction,
///            alloc_block)
struct pytorch_2_14_native final {
  using rounding = pytorch_native::rounding;
  using pools = pytorch_native::pools;
  using streams = pytorch_native::streams;
  using split = with_order<pytorch_native::split, free_order::oldest_segment>;
  using pages = pytorch_native::pages;
  using growth = grow_by_segments<2_MiB, tunable(20_MiB), 10_MiB, tunable(memory_limit{}),
                                  memory_limit::rounding::nearest>;
  using eviction = pytorch_native::eviction;
  using recovery = with_fail_fast<recover_by_releasing_oversize, tunable(false), failure_reason::by_capacity>;

  [[nodiscard]] static constexpr bool accepts(const config::pytorch::settings& settings) noexcept {
    return pytorch_native::accepts(settings);
  }
  /// Returns the policies for settings that this recipe accepts; aborts for others.
  [[nodiscard]] static constexpr policies<pytorch_2_14_native> configured(
      const config::pytorch::settings& settings) noexcept;
};
static_assert(recipe<pytorch_2_14_native>);

/// Makes the decisions of PyTorch 2.14 with expandable_segments. It differs from pytorch_expandable in the
/// rules of pytorch_2_14_native.
struct pytorch_2_14_expandable final {
  using rounding = pytorch_expandable::rounding;
  using pools = pytorch_expandable::pools;
  using streams = pytorch_expandable::streams;
  using split = with_order<pytorch_expandable::split, free_order::oldest_segment>;
  using pages = pytorch_expandable::pages;
  using growth =
      grow_by_mapping<2_MiB, tunable(20_MiB), tunable(memory_limit{}), tunable(std::size_t{1}),
                      tunable(memory_limit{fraction{1'125'000'000}}), memory_limit::rounding::nearest>;
  using eviction = pytorch_expandable::eviction;
  using recovery = with_fail_fast<recover_by_emptying_cache<>, tunable(false), failure_reason::by_capacity>;

  [[nodiscard]] static constexpr bool accepts(const config::pytorch::settings& settings) noexcept {
    return pytorch_expandable::accepts(settings);
  }
  [[nodiscard]] static constexpr policies<pytorch_2_14_expandable> configured(
      const config::pytorch::settings& settings) noexcept;
};
static_assert(recipe<pytorch_2_14_expandable>);

/// Makes the decisions of PyTorch 2.14's cache of pinned host memory. It is like `pinned`, except for one
/// rule: the most recently freed block of the size class that is large enough serves.
///   Source:  CachingHostAllocator.h of mid-2026
struct pinned_2_14 final {
  using rounding = pinned::rounding;
  using pools = pinned::pools;
  using streams = pinned::streams;
  using split = with_order<pinned::split, free_order::newest_in_class>;
  using pages = pinned::pages;
  using growth = pinned::growth;
  using eviction = pinned::eviction;
  using recovery = pinned::recovery;

  [[nodiscard]] static constexpr bool accepts(const config::pytorch::settings& settings) noexcept {
    return pinned::accepts(settings);
  }
  [[nodiscard]] static constexpr policies<pinned_2_14> configured(
      const config::pytorch::settings& settings) noexcept;
};
static_assert(recipe<pinned_2_14>);

constexpr policies<pytorch_2_14_native> pytorch_2_14_native::configured(
    const config::pytorch::settings& settings) noexcept {
  if (!accepts(settings)) detail::fatal("pytorch_2_14_native::configured: settings for another recipe");
  return detail::with_pytorch_settings<pytorch_2_14_native>(settings);
}
constexpr policies<pytorch_2_14_expandable> pytorch_2_14_expandable::configured(
    const config::pytorch::settings& settings) noexcept {
  if (!accepts(settings)) detail::fatal("pytorch_2_14_expandable::configured: settings for another recipe");
  return detail::with_pytorch_settings<pytorch_2_14_expandable>(settings);
}
constexpr policies<pinned_2_14> pinned_2_14::configured(const config::pytorch::settings& settings) noexcept {
  return detail::with_pinned_settings<pinned_2_14>(settings.pinned_max_round_threshold,
                                                   settings.pinned_max_cached_size);
}

}  // namespace detail

/// The recipes that PYTORCH_CUDA_ALLOC_CONF chooses from.
struct pytorch_family
    : detail::family<config::pytorch, detail::pytorch_native, detail::pytorch_expandable, cuda_async> {
  using native = detail::pytorch_native;
  using expandable = detail::pytorch_expandable;
  /// The family of recipes for pinned host memory.
  using pinned_family = detail::family<config::pytorch, pinned>;
};

/// The recipes that PYTORCH_CUDA_ALLOC_CONF chooses from in PyTorch 2.14.
struct pytorch_2_14_family : detail::family<config::pytorch_2_14, detail::pytorch_2_14_native,
                                            detail::pytorch_2_14_expandable, cuda_async> {
  using native = detail::pytorch_2_14_native;
  using expandable = detail::pytorch_2_14_expandable;
  using pinned = detail::pinned_2_14;
  using pinned_family = detail::family<config::pytorch_2_14, detail::pinned_2_14>;
};

/// The recipe for a PYTORCH_CUDA_ALLOC_CONF, for example pytorch<"max_split_size_mb:128">.
///
///     using recipe = tessera::pytorch<"max_split_size_mb:128">;
///     tessera::caching_allocator<recipe, tessera::simulated_device> tuned;
///     tuned.policies().split.slack = 64_MiB;  // changed while the program runs
template <config::detail::fixed_string Conf = "">
using pytorch = pytorch_family::from<Conf>;

/// The recipe for a PYTORCH_CUDA_ALLOC_CONF in PyTorch 2.14, for example
/// pytorch_2_14<"expandable_segments:True">.
///
///     tessera::caching_allocator<tessera::pytorch_2_14<>, tessera::simulated_device> allocator;
template <config::detail::fixed_string Conf = "">
using pytorch_2_14 = pytorch_2_14_family::from<Conf>;

/// The recipe for pinned host memory that a PYTORCH_CUDA_ALLOC_CONF chooses.
///
///     #include <tessera/provider/host_pinned.hpp>
///     using recipe = tessera::pytorch_pinned<"pinned_max_cached_size_mb:64">;
///     tessera::caching_allocator<recipe, tessera::host_pinned> pinned;
template <config::detail::fixed_string Conf = "">
using pytorch_pinned = pytorch_family::pinned_family::from<Conf>;

}  // namespace tessera
