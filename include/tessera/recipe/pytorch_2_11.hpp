// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/recipe/pytorch_2_14.hpp>

namespace tessera::inline v0_1::recipe {

/// Makes the decisions of the native allocator of PyTorch 2.11. It has the rules of pytorch_2_14_native, except these:
///
///   * Among free blocks of equal size, that at the lowest address serves, as in PyTorch 2.6.
///   * The key throw_on_cudamalloc_oom is not known.
///
/// PyTorch's use_mem_pool opens a scope of the kind `capture`, as in 2.6.
///   Source:  CUDACachingAllocator.cpp of 2.11 (BlockComparatorSize, get_pool, alloc_block), and eight recordings on an H200
struct pytorch_2_11_native final {
  using rounding = pytorch_2_14_native::rounding;
  using pools = pytorch_2_14_native::pools;
  using streams = pytorch_2_14_native::streams;
  using split = pytorch_native::split;
  using pages = pytorch_2_14_native::pages;
  using growth = pytorch_2_14_native::growth;
  using eviction = pytorch_2_14_native::eviction;
  using recovery = pytorch_2_14_native::recovery;

  [[nodiscard]] static constexpr bool accepts(const config::pytorch::settings& settings) noexcept {
    return pytorch_native::accepts(settings) && !settings.throw_on_oom;
  }
  /// Returns the policies for settings that this recipe accepts; aborts for others.
  [[nodiscard]] static constexpr recipe::policies<pytorch_2_11_native> configured(
      const config::pytorch::settings& settings) noexcept {
    if (!accepts(settings)) detail::fatal("pytorch_2_11_native::configured: settings for another recipe");
    return detail::with_pytorch_settings<pytorch_2_11_native>(settings);
  }
};
static_assert(recipe::well_formed<pytorch_2_11_native>);

/// Makes the decisions of PyTorch 2.11 with expandable_segments. It differs from pytorch_2_14_expandable as
/// pytorch_2_11_native does from pytorch_2_14_native.
struct pytorch_2_11_expandable final {
  using rounding = pytorch_2_14_expandable::rounding;
  using pools = pytorch_2_14_expandable::pools;
  using streams = pytorch_2_14_expandable::streams;
  using split = pytorch_expandable::split;
  using pages = pytorch_2_14_expandable::pages;
  using growth = pytorch_2_14_expandable::growth;
  using eviction = pytorch_2_14_expandable::eviction;
  using recovery = pytorch_2_14_expandable::recovery;

  [[nodiscard]] static constexpr bool accepts(const config::pytorch::settings& settings) noexcept {
    return pytorch_expandable::accepts(settings) && !settings.throw_on_oom;
  }
  /// Returns the policies for settings that this recipe accepts; aborts for others.
  [[nodiscard]] static constexpr recipe::policies<pytorch_2_11_expandable> configured(
      const config::pytorch::settings& settings) noexcept {
    if (!accepts(settings)) detail::fatal("pytorch_2_11_expandable::configured: settings for another recipe");
    return detail::with_pytorch_settings<pytorch_2_11_expandable>(settings);
  }
};
static_assert(recipe::well_formed<pytorch_2_11_expandable>);

/// The recipes that PYTORCH_CUDA_ALLOC_CONF chooses from in PyTorch 2.11.
struct pytorch_2_11_family : detail::family<config::pytorch_2_14, recipe::pytorch_2_11_native,
                                            recipe::pytorch_2_11_expandable, cuda_async> {
  /// For expandable_segments:False.
  using native = recipe::pytorch_2_11_native;
  /// For expandable_segments:True.
  using expandable = recipe::pytorch_2_11_expandable;
};

/// The recipe for a PYTORCH_CUDA_ALLOC_CONF in PyTorch 2.11, for example pytorch_2_11<"expandable_segments:True">.
///
///     #include <tessera/recipe/pytorch_2_11.hpp>
///     tessera::caching_allocator<tessera::recipe::pytorch_2_11<>, tessera::provider::simulated_device> allocator;
template <detail::fixed_string Conf = "">
using pytorch_2_11 = pytorch_2_11_family::from<Conf>;

}  // namespace tessera::inline v0_1::recipe
