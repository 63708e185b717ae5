// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/config/grammar.hpp>
#include <tessera/config/torch_npu_conf.hpp>
#include <tessera/policy/grow_by_mapping.hpp>
#include <tessera/policy/prefer_pages.hpp>
#include <tessera/recipe/family.hpp>
#include <tessera/recipe/pinned.hpp>
#include <tessera/recipe/recipe.hpp>

namespace tessera::inline v0_1::detail {

/// Returns the policies of a recipe for torch_npu's settings.
template <typename Recipe>
[[nodiscard]] constexpr recipe::policies<Recipe> with_torch_npu_settings(
    const config::torch_npu::settings& settings) noexcept {
  constexpr std::size_t lazy_threshold = 512;  // pending blocks
  recipe::policies<Recipe> chosen{};
  chosen.rounding.inner.table = settings.roundup;
  chosen.streams.threshold = settings.multi_stream_lazy_reclaim ? lazy_threshold : 0;
  chosen.split.max = settings.max_split_size;
  chosen.split.slack = settings.max_non_split_rounding;
  chosen.pages.choice = page_choice{.pages = settings.huge_1g_pages ? page_preference::huge_1g_first
                                                                    : page_preference::huge_first};
  // With 1 GiB pages, segments are rounded up to whole pages, so the key has no effect.
  chosen.growth.large = settings.huge_1g_pages ? 20_MiB : settings.large_segment_size;
  chosen.growth.limit = settings.memory_fraction;
  chosen.eviction.threshold = settings.garbage_collection_threshold;
  chosen.recovery.fails_fast = settings.throw_on_oom;
  return chosen;
}

}  // namespace tessera::inline v0_1::detail

namespace tessera::inline v0_1::recipe {

/// Makes the decisions of the caching allocator of torch_npu 2.12.
///
/// It differs from pytorch_native in four rules:
///   * 32 bytes are added to each request before rounding, so a request of 1 MiB is in the large pool.
///   * If a block's own stream is recorded, it also delays reuse.
///   * Memory has 2 MiB pages.
///   * No memory goes back during a capture. In torch_npu, recovery and garbage collection may release some.
///
/// It has the settings of pytorch_native, but `rounding.inner.table` instead of `rounding.table`. It also has
/// `pages.choice` (page_size) and `streams.threshold` (multi_stream_lazy_reclaim).
struct torch_npu_native final {
  using rounding = policy::round_padded<32, policy::round_to_divisions<512>>;
  using pools = policy::pool_small_and_large<1_MiB>;
  using streams = policy::poll_events_lazily<policy::reuse_on_same_stream_after_own_events>;
  using split = policy::split_below<>;
  using pages = policy::prefer_pages<tunable(page_choice{.pages = page_preference::huge_first})>;
  using growth = policy::grow_by_segments<>;
  using eviction = policy::evict_idle_above<tunable(fraction{}), true>;
  using recovery = policy::fail_fast<policy::recover_by_releasing_oversize>;

  [[nodiscard]] static constexpr bool accepts(const config::torch_npu::settings& settings) noexcept {
    return !settings.expandable_segments;
  }
  /// Returns the policies for settings that this recipe accepts; aborts for others.
  [[nodiscard]] static constexpr recipe::policies<torch_npu_native> configured(
      const config::torch_npu::settings& settings) noexcept {
    if (!accepts(settings)) detail::fatal("torch_npu_native::configured: settings for another recipe");
    return detail::with_torch_npu_settings<torch_npu_native>(settings);
  }
};
static_assert(recipe::well_formed<torch_npu_native>);

/// Makes the decisions of torch_npu with expandable_segments. Large blocks then start at multiples of
/// `growth.alignment` (base_addr_aligned_kb), and large pages have `growth.large` bytes
/// (large_segment_size_mb, segment_size_mb).
struct torch_npu_expandable final {
  using rounding = torch_npu_native::rounding;
  using pools = torch_npu_native::pools;
  using streams = torch_npu_native::streams;
  using split = policy::split_below<tunable(unlimited), tunable(20_MiB), limit_of_pools, 0>;
  using pages = torch_npu_native::pages;
  using growth = policy::grow_by_mapping<2_MiB, tunable(20_MiB), tunable(memory_limit{}), tunable(16_KiB)>;
  using eviction = policy::evict_idle_above<tunable(fraction{}), true>;
  using recovery = policy::fail_fast<policy::recover_by_emptying_cache<>>;

  [[nodiscard]] static constexpr bool accepts(const config::torch_npu::settings& settings) noexcept {
    return settings.expandable_segments;
  }
  [[nodiscard]] static constexpr recipe::policies<torch_npu_expandable> configured(
      const config::torch_npu::settings& settings) noexcept {
    if (!accepts(settings)) detail::fatal("torch_npu_expandable::configured: settings for another recipe");
    auto chosen = detail::with_torch_npu_settings<torch_npu_expandable>(settings);
    chosen.growth.alignment = settings.base_addr_aligned;
    if (settings.huge_1g_pages) {
      chosen.growth.large = 1_GiB;
    } else if (settings.large_segment_size == 20_MiB) {
      chosen.growth.large = settings.segment_size;
    }
    return chosen;
  }
};
static_assert(recipe::well_formed<torch_npu_expandable>);

/// Makes the decisions of torch_npu's cache of pinned host memory with pin_memory_expandable_segments. It
/// maps pages of 20 MiB into one range of addresses, which blocks of all sizes share.
struct pinned_expandable final {
  using rounding = policy::round_padded<32, policy::round_to_multiple<512>>;
  using pools = policy::pool_together;
  using streams = policy::reuse_after_events;
  using split = policy::split_if_remainder_at_least<512>;
  using pages = policy::normal_pages;
  using growth = policy::grow_by_mapping<20_MiB, 20_MiB>;
  using eviction = policy::evict_never;
  using recovery = policy::recover_by_emptying_cache<>;

  /// configured_pinned reads the keys for pinned memory that no policy reads.
  static constexpr bool is_for_host_memory = true;

  [[nodiscard]] static constexpr bool accepts(const config::torch_npu::settings& settings) noexcept {
    return settings.pin_memory_expandable_segments;
  }
  [[nodiscard]] static constexpr recipe::policies<pinned_expandable> configured(
      const config::torch_npu::settings& settings) noexcept {
    if (!accepts(settings)) detail::fatal("pinned_expandable::configured: settings for another recipe");
    return {};
  }
};
static_assert(recipe::well_formed<pinned_expandable>);

constexpr bool pinned::accepts(const config::torch_npu_settings& settings) noexcept {
  return !settings.pin_memory_expandable_segments;
}
constexpr policies<pinned> pinned::configured(const config::torch_npu::settings& settings) noexcept {
  if (!accepts(settings)) detail::fatal("pinned::configured: settings for another recipe");
  return detail::with_pinned_settings<pinned>(settings.pinned_max_round_threshold,
                                              settings.pinned_max_cached_size);
}

/// The recipes that PYTORCH_NPU_ALLOC_CONF chooses from.
struct torch_npu_family
    : detail::family<config::torch_npu, recipe::torch_npu_native, recipe::torch_npu_expandable> {
  /// For expandable_segments:False.
  using native = recipe::torch_npu_native;
  /// For expandable_segments:True.
  using expandable = recipe::torch_npu_expandable;
  /// Pinned host memory, for pin_memory_expandable_segments:True.
  using pinned_expandable = recipe::pinned_expandable;
  /// The recipes for pinned host memory.
  using pinned_family = detail::family<config::torch_npu, pinned, recipe::pinned_expandable>;
};

/// The recipe for a PYTORCH_NPU_ALLOC_CONF, for example torch_npu<"max_split_size_mb:32">.
template <detail::fixed_string Conf = "">
using torch_npu = torch_npu_family::from<Conf>;

/// The recipe for pinned host memory that a PYTORCH_NPU_ALLOC_CONF chooses, for example
/// torch_npu_pinned<"pin_memory_expandable_segments:True">.
template <detail::fixed_string Conf = "">
using torch_npu_pinned = torch_npu_family::pinned_family::from<Conf>;

}  // namespace tessera::inline v0_1::recipe
