// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/recipe/recipe.hpp>

namespace tessera::inline v0_1::config {

struct pytorch_settings;
struct torch_npu_settings;

}  // namespace tessera::inline v0_1::config

namespace tessera::inline v0_1::recipe {

/// Makes the decisions of PyTorch's cache of pinned host memory. It keeps whole blocks in size classes of
/// powers of two. Any stream reuses a block once the events of recorded streams complete.
///
/// Settings, off by default: `rounding.threshold` (pinned_max_round_threshold_mb) and `eviction.threshold`
/// (pinned_max_cached_size_mb). Blocks have at least 4 KiB, because whole pages are pinned.
struct pinned final {
  using rounding = policy::round_to_power_of_two<4_KiB, tunable(unlimited)>;
  using pools = policy::pool_together;
  using streams = policy::reuse_after_events;
  using split = policy::split_never<policy::block_fit::same_power_of_two>;
  using pages = policy::normal_pages;
  using growth = policy::grow_exactly<>;
  using eviction = policy::evict_at_free<tunable(unlimited)>;
  using recovery = policy::recover_by_emptying_cache<>;

  /// configured_pinned reads the keys for pinned memory that no policy reads.
  static constexpr bool is_for_host_memory = true;

  [[nodiscard]] static constexpr bool accepts(const config::pytorch_settings& settings) noexcept;
  [[nodiscard]] static constexpr bool accepts(const config::torch_npu_settings& settings) noexcept;
  /// Returns the policies for settings that this recipe accepts; aborts for others. Uses only keys for pinned
  /// memory.
  [[nodiscard]] static constexpr policies<pinned> configured(
      const config::pytorch_settings& settings) noexcept;
  [[nodiscard]] static constexpr policies<pinned> configured(
      const config::torch_npu_settings& settings) noexcept;
};
static_assert(well_formed<pinned>);

/// Pins little host memory: it splits segments into blocks of any size and coalesces free blocks. Otherwise
/// it is like `pinned`.
///
/// Choose it unless you need PyTorch's decisions: a request of 5 GiB pins 5 GiB, not 8 GiB. On recorded
/// programs:
///
/// | recipe                                    | peak reserved / peak requested | device calls |
/// |-------------------------------------------|--------------------------------|--------------|
/// | pinned_packed                             | 1.56                           | 706          |
/// | pinned                                    | 2.07                           | 10,449       |
/// | pinned_expandable (needs virtual memory)  | 1.13                           | 1,130        |
/// | whole blocks without size classes         | 23.6                           | -            |
struct pinned_packed final {
  using rounding = policy::round_to_multiple<512>;
  using pools = policy::newest_scope_first<policy::pool_together>;
  using streams = policy::reuse_after_events;
  using split = policy::split_if_remainder_at_least<512>;
  using pages = policy::normal_pages;
  using growth = policy::grow_by_segments<>;
  using eviction = policy::evict_at_free<tunable(unlimited)>;
  using recovery = policy::recover_by_emptying_cache<>;
};
static_assert(well_formed<pinned_packed>);

}  // namespace tessera::inline v0_1::recipe

namespace tessera::inline v0_1::detail {

/// Returns the policies for two settings. A size that is never cached is not rounded.
template <typename Recipe>
[[nodiscard]] constexpr recipe::policies<Recipe> with_pinned_settings(std::size_t max_round,
                                                                      std::size_t max_cached) noexcept {
  recipe::policies<Recipe> chosen{};
  chosen.rounding.threshold = max_round < max_cached ? max_round : max_cached;
  chosen.eviction.threshold = max_cached;
  return chosen;
}

}  // namespace tessera::inline v0_1::detail
