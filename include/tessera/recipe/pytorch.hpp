// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/recipe/recipe.hpp>

/// The recipe `pytorch<>`. With a configuration string, as in pytorch<"max_split_size_mb:128">, it is in
/// tessera/recipe/pytorch_strings.hpp, so that a program without strings does not compile their parser.
///
/// A recipe names one policy for each decision of an allocator. To see what a policy answers, read
/// tessera/policy/split.hpp next.

namespace tessera::inline v0_1::config {

struct pytorch_settings;

}  // namespace tessera::inline v0_1::config

namespace tessera::inline v0_1::recipe {

/// Makes the decisions of the native CUDA caching allocator of PyTorch 2.6. A configuration string may
/// use every key that PyTorch had in the middle of 2026.
///
/// As in PyTorch 2.6, max_split_size_mb and garbage_collection_threshold may release memory while a graph is captured. CUDA
/// then ends the capture with an error. This recipe releases none:
///
///     using safe = tessera::recipe::with<tessera::recipe::pytorch<>, tessera::policy::fail_fast<tessera::policy::recover_by_releasing_oversize>>;
///
/// Settings, off by default:
///   * `rounding.table`: roundup_power2_divisions
///   * `split.max`: max_split_size_mb
///   * `eviction.threshold`: garbage_collection_threshold
///   * `growth.limit`: the memory fraction
struct pytorch_native final {
  using rounding = policy::round_to_divisions<512>;
  using pools = policy::pool_small_and_large<1_MiB>;
  using streams = policy::reuse_on_same_stream;
  using split = policy::split_below<>;
  using pages = policy::normal_pages;
  using growth = policy::grow_by_segments<>;
  using eviction = policy::evict_idle_above<tunable(fraction{}), true>;
  using recovery = policy::fail_fast<policy::release_in_captures<policy::recover_by_releasing_oversize>>;

  [[nodiscard]] static constexpr bool accepts(const config::pytorch_settings& settings) noexcept;
  /// Returns the policies for settings that this recipe accepts; aborts for others.
  [[nodiscard]] static constexpr recipe::policies<pytorch_native> configured(
      const config::pytorch_settings& settings) noexcept;
};
static_assert(recipe::well_formed<pytorch_native>);

}  // namespace tessera::inline v0_1::recipe

namespace tessera::inline v0_1::detail {

/// The recipes for configuration strings of `Size` characters, the 0 at the end included.
template <std::size_t Size>
struct pytorch_strings {
  static_assert(
      Size == 1,
      "pytorch<\"...\">: a configuration string needs #include <tessera/recipe/pytorch_strings.hpp>");
  template <fixed_string>
  using recipe_of = recipe::pytorch_native;
};

}  // namespace tessera::inline v0_1::detail

namespace tessera::inline v0_1::recipe {

/// The recipe for a PYTORCH_CUDA_ALLOC_CONF, for example pytorch<"max_split_size_mb:128">.
///
///     #include <tessera/recipe/pytorch_strings.hpp>
///     using recipe = tessera::recipe::pytorch<"max_split_size_mb:128">;
///     tessera::caching_allocator<recipe, tessera::provider::simulated_device> tuned;
///     tuned.policies().split.slack = 64_MiB;  // changed while the program runs
template <detail::fixed_string Conf = "">
using pytorch = typename detail::pytorch_strings<sizeof(Conf.chars)>::template recipe_of<Conf>;

}  // namespace tessera::inline v0_1::recipe
