// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/config/pytorch_conf.hpp>
#include <tessera/policy/grow_by_mapping.hpp>
#include <tessera/recipe/family.hpp>
#include <tessera/recipe/pytorch.hpp>
#include <tessera/recipe/recipe.hpp>

/// pytorch<"..."> for the strings that choose the native backend, with and without expandable_segments. For
/// "backend:cudaMallocAsync", include tessera/recipe/pytorch_family.hpp.

namespace tessera::inline v0_1::recipe {

/// Makes the decisions of PyTorch 2.6 with expandable_segments. It maps pages into ranges of addresses, which
/// blocks of any size share.
///
/// Choose it if the device has virtual memory and sizes vary. Oversize blocks are split. With `split.max`, a
/// request below it does not use a free block of that size or more. A larger request does not use a block
/// with `split.slack` or more to spare. Growth ignores both rules: it may take a refused free block if
/// unmapped addresses follow it, as it is or with pages mapped behind it. The key
/// garbage_collection_threshold has no effect, as in PyTorch. But if you set `eviction.threshold` directly, idle
/// pages are released.
struct pytorch_expandable final {
  using rounding = policy::round_to_divisions<512>;
  using pools = policy::pool_small_and_large<1_MiB>;
  using streams = policy::reuse_on_same_stream;
  using split = policy::split_below<tunable(unlimited), tunable(20_MiB), limit_of_pools, 0>;
  using pages = policy::normal_pages;
  using growth = policy::grow_by_mapping<>;
  using eviction = policy::evict_idle_above<tunable(fraction{}), true>;
  using recovery = policy::fail_fast<policy::recover_by_emptying_cache<>>;

  [[nodiscard]] static constexpr bool accepts(const config::pytorch::settings& settings) noexcept {
    return !settings.async_backend && settings.expandable_segments;
  }
  [[nodiscard]] static constexpr recipe::policies<pytorch_expandable> configured(
      const config::pytorch::settings& settings) noexcept;
};
static_assert(recipe::well_formed<pytorch_expandable>);

}  // namespace tessera::inline v0_1::recipe

namespace tessera::inline v0_1::detail {

/// Returns the policies of a recipe for PyTorch's settings.
template <typename Recipe>
[[nodiscard]] constexpr recipe::policies<Recipe> with_pytorch_settings(
    const config::pytorch::settings& settings) noexcept {
  recipe::policies<Recipe> chosen{};
  chosen.rounding.table = settings.roundup;
  chosen.split.max = settings.max_split_size;
  chosen.split.slack = settings.max_non_split_rounding;
  chosen.growth.large = settings.large_segment_size;
  chosen.growth.limit = settings.memory_fraction;
  // With expandable_segments, PyTorch accepts the key but releases no pages.
  if (!settings.expandable_segments) chosen.eviction.threshold = settings.garbage_collection_threshold;
  chosen.recovery.fails_fast = settings.throw_on_oom;
  if constexpr (Recipe::recovery::checks_capacity) chosen.recovery.share = settings.memory_fraction;
  return chosen;
}

/// The recipe for settings of the native backend.
template <bool IsAsync>
struct needs_tessera_recipe_pytorch_family_hpp
    : family<config::pytorch, recipe::pytorch_native, recipe::pytorch_expandable> {};
/// The recipe for the backend cudaMallocAsync. tessera/recipe/pytorch_family.hpp defines it.
template <>
struct needs_tessera_recipe_pytorch_family_hpp<true>;

template <std::size_t Size>
  requires(Size > 1)
struct pytorch_strings<Size> {
  template <fixed_string Conf, auto Settings = config::detail::settings_in<config::pytorch, Conf>()>
  using recipe_of =
      typename needs_tessera_recipe_pytorch_family_hpp<Settings.async_backend>::template under<Settings>;
};

}  // namespace tessera::inline v0_1::detail

namespace tessera::inline v0_1::recipe {

constexpr bool pytorch_native::accepts(const config::pytorch_settings& settings) noexcept {
  return !settings.async_backend && !settings.expandable_segments;
}
constexpr recipe::policies<pytorch_native> pytorch_native::configured(
    const config::pytorch::settings& settings) noexcept {
  if (!accepts(settings)) detail::fatal("pytorch_native::configured: settings for another recipe");
  return detail::with_pytorch_settings<pytorch_native>(settings);
}
constexpr recipe::policies<pytorch_expandable> pytorch_expandable::configured(
    const config::pytorch::settings& settings) noexcept {
  if (!accepts(settings)) detail::fatal("pytorch_expandable::configured: settings for another recipe");
  auto chosen = detail::with_pytorch_settings<pytorch_expandable>(settings);
  chosen.growth.range = settings.expandable_segments_reserve;
  return chosen;
}

}  // namespace tessera::inline v0_1::recipe
