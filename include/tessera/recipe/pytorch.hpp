// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/config/pytorch.hpp>
#include <tessera/core/bytes.hpp>
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
  [[nodiscard]] static constexpr policies<pytorch> configured(
      const config::pytorch_settings& settings) noexcept;
};
static_assert(recipe<pytorch>);

constexpr policies<pytorch> pytorch::configured(const config::pytorch_settings& settings) noexcept {
  return {.rounding = {.table = settings.roundup},
          .split = {.max = settings.max_split_size, .slack = settings.max_non_split_rounding},
          .eviction = {.threshold = settings.garbage_collection_threshold}};
}

}  // namespace tessera
