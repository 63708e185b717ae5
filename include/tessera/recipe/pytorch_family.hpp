// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/config/pytorch_conf.hpp>
#include <tessera/recipe/cuda_async.hpp>
#include <tessera/recipe/family.hpp>
#include <tessera/recipe/pinned.hpp>
#include <tessera/recipe/pytorch.hpp>
#include <tessera/recipe/pytorch_strings.hpp>
#include <tessera/recipe/recipe.hpp>

/// The recipes that a configuration string of PyTorch chooses.

namespace tessera::inline v0_1::recipe {

constexpr bool pinned::accepts(const config::pytorch_settings&) noexcept { return true; }
constexpr policies<pinned> pinned::configured(const config::pytorch::settings& settings) noexcept {
  return detail::with_pinned_settings<pinned>(settings.pinned_max_round_threshold,
                                              settings.pinned_max_cached_size);
}
constexpr bool cuda_async::accepts(const config::pytorch_settings& settings) noexcept {
  return settings.async_backend;
}
constexpr policies<cuda_async> cuda_async::configured(const config::pytorch::settings& settings) noexcept {
  if (!accepts(settings)) detail::fatal("cuda_async::configured: settings for another recipe");
  policies<cuda_async> chosen{};
  chosen.growth.limit = settings.memory_fraction;
  chosen.eviction.threshold = unlimited;
  return chosen;
}

/// The recipes that PYTORCH_CUDA_ALLOC_CONF chooses from.
struct pytorch_family
    : detail::family<config::pytorch, recipe::pytorch_native, recipe::pytorch_expandable, cuda_async> {
  /// For expandable_segments:False.
  using native = recipe::pytorch_native;
  /// For expandable_segments:True.
  using expandable = recipe::pytorch_expandable;
  /// The family of recipes for pinned host memory.
  using pinned_family = detail::family<config::pytorch, pinned>;
};

/// The recipe for pinned host memory that a PYTORCH_CUDA_ALLOC_CONF chooses.
///
///     #include <tessera/provider/host_pinned.hpp>
///     using recipe = tessera::recipe::pytorch_pinned<"pinned_max_cached_size_mb:64">;
///     tessera::caching_allocator<recipe, tessera::provider::host_pinned> pinned;
template <detail::fixed_string Conf = "">
using pytorch_pinned = pytorch_family::pinned_family::from<Conf>;

}  // namespace tessera::inline v0_1::recipe

namespace tessera::inline v0_1::detail {

template <>
struct needs_tessera_recipe_pytorch_family_hpp<true> {
  template <config::pytorch::settings Settings>
  using under = recipe::pytorch_family::under<Settings>;
};

}  // namespace tessera::inline v0_1::detail
