// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/config/grammar.hpp>
#include <tessera/config/pytorch.hpp>
#include <tessera/core/bytes.hpp>
#include <tessera/core/fatal.hpp>
#include <tessera/recipe/cuda_async.hpp>
#include <tessera/recipe/family.hpp>
#include <tessera/recipe/recipe.hpp>

namespace tessera {

/// Makes the decisions of the native CUDA caching allocator of PyTorch 2.6.
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
  using recovery = recover_by_releasing_oversize_then_all<>;

  [[nodiscard]] static constexpr bool serves(const config::pytorch::settings& settings) noexcept {
    return !settings.async_backend && !settings.expandable_segments;
  }
  /// Returns the policies for settings that it serves.
  [[nodiscard]] static constexpr policies<pytorch_native> configured(
      const config::pytorch::settings& settings) noexcept;
};
static_assert(recipe<pytorch_native>);

/// Makes the decisions of PyTorch 2.6 with expandable_segments. It maps pages into ranges of addresses, which
/// blocks of any size share.
///
/// Choose it if the device has virtual memory and sizes vary. `split.max` has one effect: small requests do
/// not use large free blocks. The key garbage_collection_threshold is ignored, as in PyTorch. But if you set
/// `eviction.threshold` directly, idle pages are released.
struct pytorch_expandable final {
  using rounding = round_to_divisions<512>;
  using pools = pool_small_and_large<1_MiB>;
  using streams = reuse_on_same_stream;
  using split = split_below<tunable(unlimited), tunable(20_MiB), 1_MiB, 0>;
  using pages = back_with<page_plan::normal_only>;
  using growth = grow_by_pages<>;
  using eviction = evict_idle_above<tunable(fraction{}), true>;
  using recovery = recover_by_releasing_oversize_then_all<tunable(false), false>;

  [[nodiscard]] static constexpr bool serves(const config::pytorch::settings& settings) noexcept {
    return !settings.async_backend && settings.expandable_segments;
  }
  [[nodiscard]] static constexpr policies<pytorch_expandable> configured(
      const config::pytorch::settings& settings) noexcept;
};
static_assert(recipe<pytorch_expandable>);

namespace detail {
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
}  // namespace detail
constexpr policies<pytorch_native> pytorch_native::configured(
    const config::pytorch::settings& settings) noexcept {
  if (!serves(settings)) detail::fatal("pytorch_native::configured: settings for another recipe");
  return detail::with_pytorch_settings<pytorch_native>(settings);
}
constexpr policies<pytorch_expandable> pytorch_expandable::configured(
    const config::pytorch::settings& settings) noexcept {
  if (!serves(settings)) detail::fatal("pytorch_expandable::configured: settings for another recipe");
  auto chosen = detail::with_pytorch_settings<pytorch_expandable>(settings);
  chosen.growth.reserve = settings.expandable_segments_reserve;
  return chosen;
}

/// The recipes that PYTORCH_CUDA_ALLOC_CONF chooses from.
using pytorch_family = family<config::pytorch, pytorch_native, pytorch_expandable, cuda_async>;

/// The recipe for a PYTORCH_CUDA_ALLOC_CONF, for example pytorch<"max_split_size_mb:128">.
///
///     tessera::caching_allocator<tessera::pytorch<"max_split_size_mb:128">, tessera::simulated_device> tuned;
///     tuned.policies().split.slack = 64_MiB;  // changed while the program runs
template <config::detail::fixed_string Conf = "">
using pytorch = pytorch_family::from<Conf>;

}  // namespace tessera
