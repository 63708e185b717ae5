// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/config/pytorch_conf.hpp>
#include <tessera/policy/grow_by_mapping.hpp>
#include <tessera/recipe/cuda_async.hpp>
#include <tessera/recipe/family.hpp>
#include <tessera/recipe/pinned.hpp>
#include <tessera/recipe/pytorch.hpp>
#include <tessera/recipe/pytorch_family.hpp>
#include <tessera/recipe/recipe.hpp>

namespace tessera::inline v0_1::recipe {

/// Makes the decisions of the native allocator of PyTorch 2.14. It differs from 2.6 in these rules:
///
///   * Among free blocks of equal size, a block in the oldest segment serves.
///   * A memory fraction is rounded to the nearest byte. A fraction of 1 is no limit: garbage collection needs a lower
///     one, and idle segments age only under one.
///   * With throw_on_cudamalloc_oom, a request fails at once if reserved memory and its segment would exceed the
///     per_process_memory_fraction of the settings. That is the whole device by default, and counts even if
///     set_memory_fraction has set a higher fraction since. A request above a lower fraction of set_memory_fraction goes
///     through recovery.
///   * If several scopes of private pools select a stream, the newest decides.
///
/// PyTorch's use_mem_pool opens a scope of the kind `plain`; in 2.6, it is one of the kind `capture`. PyTorch sees more
/// of a capture than a scope of the kind `capture` tells:
///
///   * It asks whether the current stream is captured. So a request of another stream queries events and empties the
///     cache during a capture; here, none does.
///   * With graph_capture_record_stream_reuse, it looks into the graph, and reuses blocks that several streams used once
///     all further work runs after these uses. When the scope of a pool ends, it frees those that are left. Here, they
///     become free in the first call after the last capture.
///   * Emptying the cache during a capture releases the memory of private pools without uses. Here, it does nothing.
///   * Recovery with max_split_size_mb and garbage collection release memory during a capture, which CUDA then ends with an
///     error. Here, they release none, as pull request 187795 proposes for recovery.
///
/// num_oom_rejections counts requests; PyTorch counts the attempts of recovery that are rejected, too. It has the settings
/// of pytorch_native.
///   Source:  CUDACachingAllocator.cpp of 2026 (BlockComparatorSizeCounterAddress, setMemoryFraction, alloc_block,
///            get_pool, is_capture_context)
struct pytorch_2_14_native final {
  using rounding = pytorch_native::rounding;
  using pools = policy::newest_scope_first<pytorch_native::pools>;
  using streams = pytorch_native::streams;
  using split = policy::ordered<pytorch_native::split, free_order::oldest_segment>;
  using pages = pytorch_native::pages;
  using growth = policy::grow_by_segments<2_MiB, tunable(20_MiB), 10_MiB, tunable(memory_limit{}),
                                          memory_limit::rounding::nearest>;
  using eviction = pytorch_native::eviction;
  using recovery = policy::fail_fast<policy::recover_by_releasing_oversize, tunable(false),
                                     policy::failure_reason::by_capacity, tunable(percent(100))>;

  [[nodiscard]] static constexpr bool accepts(const config::pytorch::settings& settings) noexcept {
    return pytorch_native::accepts(settings);
  }
  /// Returns the policies for settings that this recipe accepts; aborts for others.
  [[nodiscard]] static constexpr recipe::policies<pytorch_2_14_native> configured(
      const config::pytorch::settings& settings) noexcept {
    if (!accepts(settings)) detail::fatal("pytorch_2_14_native::configured: settings for another recipe");
    return detail::with_pytorch_settings<pytorch_2_14_native>(settings);
  }
};
static_assert(recipe::well_formed<pytorch_2_14_native>);

/// Makes the decisions of PyTorch 2.14 with expandable_segments. It differs from pytorch_expandable in the
/// rules of pytorch_2_14_native, and in this one: if a request exceeds a whole range, no range is reserved for it.
///
/// It differs from PyTorch in private pools. With `serves_on_oom`, a pool lends its free blocks; PyTorch's search for them
/// passes over all blocks of expandable segments. A pool with a pool_upstream is not possible; in PyTorch, it then has
/// segments. Private pools without uses and memory also give back ranges that hold no pages.
struct pytorch_2_14_expandable final {
  using rounding = pytorch_expandable::rounding;
  using pools = policy::newest_scope_first<pytorch_expandable::pools>;
  using streams = pytorch_expandable::streams;
  using split = policy::ordered<pytorch_expandable::split, free_order::oldest_segment>;
  using pages = pytorch_expandable::pages;
  using growth =
      policy::grow_by_mapping<2_MiB, tunable(20_MiB), tunable(memory_limit{}), tunable(std::size_t{1}),
                              tunable(memory_limit{fraction{1'125'000'000}}), memory_limit::rounding::nearest,
                              false>;
  using eviction = pytorch_expandable::eviction;
  using recovery = policy::fail_fast<policy::recover_by_emptying_cache<>, tunable(false),
                                     policy::failure_reason::by_capacity, tunable(percent(100))>;

  [[nodiscard]] static constexpr bool accepts(const config::pytorch::settings& settings) noexcept {
    return pytorch_expandable::accepts(settings);
  }
  [[nodiscard]] static constexpr recipe::policies<pytorch_2_14_expandable> configured(
      const config::pytorch::settings& settings) noexcept {
    if (!accepts(settings)) detail::fatal("pytorch_2_14_expandable::configured: settings for another recipe");
    return detail::with_pytorch_settings<pytorch_2_14_expandable>(settings);
  }
};
static_assert(recipe::well_formed<pytorch_2_14_expandable>);

/// Makes the decisions of PyTorch 2.14's cache of pinned host memory. It is like `pinned`, except for one
/// rule: the most recently freed block of the size class that is large enough serves.
///   Source:  CachingHostAllocator.h of mid-2026
struct pinned_2_14 final {
  using rounding = recipe::pinned::rounding;
  using pools = recipe::pinned::pools;
  using streams = recipe::pinned::streams;
  using split = policy::ordered<recipe::pinned::split, free_order::newest_in_class>;
  using pages = recipe::pinned::pages;
  using growth = recipe::pinned::growth;
  using eviction = recipe::pinned::eviction;
  using recovery = recipe::pinned::recovery;

  /// configured_pinned reads the keys for pinned memory that no policy reads.
  static constexpr bool is_for_host_memory = true;

  [[nodiscard]] static constexpr bool accepts(const config::pytorch::settings& settings) noexcept {
    return recipe::pinned::accepts(settings);
  }
  [[nodiscard]] static constexpr recipe::policies<pinned_2_14> configured(
      const config::pytorch::settings& settings) noexcept {
    return detail::with_pinned_settings<pinned_2_14>(settings.pinned_max_round_threshold,
                                                     settings.pinned_max_cached_size);
  }
};
static_assert(recipe::well_formed<pinned_2_14>);

}  // namespace tessera::inline v0_1::recipe

namespace tessera::inline v0_1::recipe {

/// The recipes that PYTORCH_CUDA_ALLOC_CONF chooses from in PyTorch 2.14.
struct pytorch_2_14_family : detail::family<config::pytorch_2_14, recipe::pytorch_2_14_native,
                                            recipe::pytorch_2_14_expandable, cuda_async> {
  /// For expandable_segments:False.
  using native = recipe::pytorch_2_14_native;
  /// For expandable_segments:True.
  using expandable = recipe::pytorch_2_14_expandable;
  /// For pinned host memory.
  using pinned = recipe::pinned_2_14;
  /// The family of recipes for pinned host memory.
  using pinned_family = detail::family<config::pytorch_2_14, recipe::pinned_2_14>;
};

/// The recipe for a PYTORCH_CUDA_ALLOC_CONF in PyTorch 2.14, for example
/// pytorch_2_14<"expandable_segments:True">.
///
///     tessera::caching_allocator<tessera::recipe::pytorch_2_14<>, tessera::provider::simulated_device> allocator;
template <detail::fixed_string Conf = "">
using pytorch_2_14 = pytorch_2_14_family::from<Conf>;

}  // namespace tessera::inline v0_1::recipe
