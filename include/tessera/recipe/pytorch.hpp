// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/config/pytorch.hpp>
#include <tessera/core/bytes.hpp>
#include <tessera/core/contract.hpp>
#include <tessera/recipe/recipe.hpp>

namespace tessera {

/// Decides as the native CUDA caching allocator of PyTorch 2.6 does.
///
/// Its settings are members of the policies, off by default: `rounding.table` (roundup_power2_divisions), `split.max`
/// (max_split_size_mb), `eviction.threshold` (garbage_collection_threshold), `growth.most` (the memory fraction).
struct pytorch final {
  using rounding = round_to_divisions<512>;
  using pools = pool_small_and_large<1_MiB>;
  using streams = reuse_on_same_stream;
  using split = split_up_to<>;
  using pages = back_with_normal_pages;
  using growth = grow_by_segments<2_MiB, 20_MiB>;
  using eviction = evict_idle_above<>;
  using recovery = recover_like_pytorch;

  /// The policies under the settings of a PYTORCH_CUDA_ALLOC_CONF.
  ///   Requires:  settings without expandable_segments, for which pytorch_expandable is there, and the reverse
  [[nodiscard]] static constexpr policies<pytorch> configured(
      const config::pytorch_settings& settings) noexcept;
};
static_assert(recipe<pytorch>);

/// Decides as that allocator does with expandable_segments: pages are mapped into ranges of addresses, so that blocks of
/// any size share them.
///
/// Here a range also gives idle pages back above `eviction.threshold`, and `split.max` keeps small requests out of large
/// free blocks; PyTorch takes both settings and does neither.
struct pytorch_expandable final {
  using rounding = round_to_divisions<512>;
  using pools = pool_small_and_large<1_MiB>;
  using streams = reuse_on_same_stream;
  using split = split_up_to<tunable(unlimited), tunable(20_MiB), 1_MiB, 0>;
  using pages = back_with_normal_pages;
  using growth = grow_in_place<>;
  using eviction = evict_idle_above<>;
  using recovery = recover_like_pytorch;

  [[nodiscard]] static constexpr policies<pytorch_expandable> configured(
      const config::pytorch_settings& settings) noexcept;
};
static_assert(recipe<pytorch_expandable>);

/// The policies of a recipe with PyTorch's numbers under its settings.
template <typename Recipe>
[[nodiscard]] constexpr policies<Recipe> under_pytorch_settings(
    const config::pytorch_settings& settings) noexcept {
  return {.rounding = {.table = settings.roundup},
          .split = {.max = settings.max_split_size, .slack = settings.max_non_split_rounding},
          .eviction = {.threshold = settings.garbage_collection_threshold}};
}
constexpr policies<pytorch> pytorch::configured(const config::pytorch_settings& settings) noexcept {
  if (settings.expandable_segments)
    contract_broken("pytorch::configured: for expandable_segments the recipe is pytorch_expandable");
  return under_pytorch_settings<pytorch>(settings);
}
constexpr policies<pytorch_expandable> pytorch_expandable::configured(
    const config::pytorch_settings& settings) noexcept {
  if (!settings.expandable_segments)
    contract_broken("pytorch_expandable::configured: without expandable_segments the recipe is pytorch");
  return under_pytorch_settings<pytorch_expandable>(settings);
}

}  // namespace tessera
