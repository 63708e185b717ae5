// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/policy/reuse_across_streams.hpp>
#include <tessera/recipe/recipe.hpp>

namespace tessera::inline v0_1::config {

struct pytorch_settings;

}  // namespace tessera::inline v0_1::config

namespace tessera::inline v0_1::recipe {

/// Behaves like the memory pools of cudaMallocAsync: frees are ordered by stream, and blocks are reused
/// across streams.
///
/// Choose it for programs with many streams; cuda_mempool gives it the calls of CUDA's pools. Its settings are
/// `streams.follow_dependencies`, `streams.opportunistic` and `streams.insert_dependencies`, all on, and
/// `eviction.threshold`, 0 bytes. tessera chooses sizes and blocks by its own rules, because the driver's
/// rules are not documented.
struct cuda_async final {
  using rounding = policy::round_to_multiple<512>;
  using pools = policy::pool_together;
  using streams = policy::reuse_across_streams<>;
  using split = policy::split_if_remainder_at_least<512>;
  using pages = policy::normal_pages;
  using growth = policy::grow_by_segments<2_MiB, 2_MiB, 0>;
  using eviction = policy::evict_at_synchronize_above<>;
  using recovery = policy::recover_by_emptying_cache<>;

  [[nodiscard]] static constexpr bool accepts(const config::pytorch_settings& settings) noexcept;
  /// Returns the policies for settings that this recipe accepts; aborts for others. Ignores keys of the
  /// native backend. By default, nothing is released automatically.
  [[nodiscard]] static constexpr policies<cuda_async> configured(
      const config::pytorch_settings& settings) noexcept;
};
static_assert(well_formed<cuda_async>);

}  // namespace tessera::inline v0_1::recipe
