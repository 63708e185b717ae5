// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/config/grammar.hpp>
#include <tessera/config/paddle_flags.hpp>
#include <tessera/policy/chunks.hpp>
#include <tessera/policy/grow_at_end.hpp>
#include <tessera/recipe/family.hpp>
#include <tessera/recipe/recipe.hpp>

namespace tessera::inline v0_1::recipe {

/// Makes the decisions of auto_growth, PaddlePaddle's default allocator until July 2026. It acquires a chunk if no
/// free block fits, and splits it from the high end.
///
/// Settings, off by default:
///   * `growth.large`: auto_growth_chunk_size_in_mb
///   * `eviction.at_free`, `eviction.before_growth`: free_idle_chunk, free_when_no_cache_hit
///   * `pools.boundary`: small_pool_size_in_mb
///   * `growth.limit`: gpu_memory_limit_mb, for this allocator only
///   * `recovery.accepts_exact_size`: not Paddle's
///
/// A recorded stream delays reuse for the work submitted before the free. In Paddle, it counts the work
/// submitted before record_stream.
struct paddle_auto_growth final {
  using rounding = policy::round_to_multiple<256>;
  using pools = policy::newest_scope_first<policy::pool_small_and_large<tunable(std::size_t{0})>>;
  using streams = policy::reuse_on_same_stream;
  using split = policy::split_if_remainder_at_least<min_alignment, policy::block_end::high>;
  using pages = policy::normal_pages;
  using growth = policy::grow_by_chunks<>;
  using eviction = policy::evict_idle_segments<>;
  using recovery = policy::recover_by_emptying_cache<tunable(false)>;

  [[nodiscard]] static constexpr bool accepts(const config::paddle::settings& settings) noexcept {
    return !settings.naive_best_fit && !settings.chooses_virtual_memory_v1() && !settings.virtual_memory_v2;
  }
  /// Returns the policies for settings that this recipe accepts; aborts for others.
  [[nodiscard]] static constexpr recipe::policies<paddle_auto_growth> configured(
      const config::paddle::settings& settings) noexcept {
    if (!accepts(settings)) detail::fatal("paddle_auto_growth::configured: settings for another recipe");
    const bool two_pools = settings.small_pool_size > 0;  // then their chunk sizes override the general size
    const std::size_t large = two_pools ? settings.large_pool_chunk_size : settings.auto_growth_chunk_size;
    const std::size_t limit = settings.gpu_memory_limit;
    recipe::policies<paddle_auto_growth> chosen{};
    chosen.pools.boundary = settings.small_pool_size;
    chosen.growth.small_chunk = settings.small_pool_chunk_size;
    chosen.growth.large = large;
    chosen.growth.limit = limit > 0 ? memory_limit(limit) : memory_limit();
    chosen.eviction.before_growth = settings.free_when_no_cache_hit;
    chosen.eviction.at_free = settings.free_idle_chunk;
    return chosen;
  }
};
static_assert(recipe::well_formed<paddle_auto_growth>);

/// Makes the decisions of PaddlePaddle's naive_best_fit allocator. It acquires most of the device's memory as
/// its first chunk, and splits it.
///
/// A request larger than a chunk has its own segment, which is released when the block is freed. Each block
/// has 64 bytes of padding. There is no recovery. All streams share free blocks at once, because Paddle uses
/// one stream. A recorded stream delays reuse.
///
/// Settings:
///   * `growth.schedule` and `eviction.schedule`, which must be equal
///   * `growth.limit`: gpu_memory_limit_mb, for this allocator only
struct paddle_naive_best_fit final {
  using rounding = policy::round_padded<64, policy::round_to_multiple<256>>;
  using pools = policy::newest_scope_first<policy::pool_together>;
  using streams = policy::reuse_after_events;
  using split = policy::split_if_remainder_at_least<128>;
  using pages = policy::normal_pages;
  using growth = policy::grow_by_schedule<>;
  using eviction = policy::evict_at_free_above_schedule<>;
  using recovery = policy::recover_never;

  [[nodiscard]] static constexpr bool accepts(const config::paddle::settings& settings) noexcept {
    return settings.naive_best_fit;
  }
  /// Returns the policies for settings that this recipe accepts; aborts for others.
  [[nodiscard]] static constexpr recipe::policies<paddle_naive_best_fit> configured(
      const config::paddle::settings& settings) noexcept {
    if (!accepts(settings)) detail::fatal("paddle_naive_best_fit::configured: settings for another recipe");
    const policy::chunk_schedule schedule{settings.initial_gpu_memory, settings.reallocate_gpu_memory,
                                          settings.fraction_of_gpu_memory};
    const std::size_t limit = settings.gpu_memory_limit;
    recipe::policies<paddle_naive_best_fit> chosen{};
    chosen.growth.schedule = schedule;
    chosen.growth.limit = limit > 0 ? memory_limit(limit) : memory_limit();
    chosen.eviction.schedule = schedule;
    return chosen;
  }
};
static_assert(recipe::well_formed<paddle_naive_best_fit>);

/// Makes the decisions of PaddlePaddle's use_virtual_memory_auto_growth. It maps memory at the end of one range of
/// addresses, and keeps it. The device maps what is missing at the end and 256 bytes, rounded up to 2 MiB, as one chunk.
///
/// A block keeps a rest of 256 bytes. trim() gives memory back; Paddle does not, so this recipe's use of the addresses
/// that become free is its own. Paddle does not enforce gpu_memory_limit_mb here; this recipe does.
///
/// Settings:
///   * `pools.boundary`: vmm_small_pool_size_in_mb, less 256 bytes, because Paddle's small blocks are smaller than it.
///     0 is one pool, as before November 2025. With use_multi_scale_virtual_memory_auto_growth, the flag that first had two
///     pools, a block of the whole size is small
///   * `growth.limit`: gpu_memory_limit_mb, for this allocator only
///   Source:  virtual_memory_auto_growth_best_fit_allocator.cc and cuda_virtual_mem_allocator.cc of July 2026; pull requests
///            76222 and 76523
struct paddle_virtual_memory final {
  using rounding = policy::round_to_multiple<256>;
  using pools = policy::newest_scope_first<policy::pool_small_and_large<tunable(1_MiB - 256)>>;
  using streams = policy::reuse_on_same_stream;
  using split = policy::split_if_remainder_at_least<512>;
  using pages = policy::normal_pages;
  using growth = policy::grow_at_end<2_MiB, 2_MiB, 256, policy::append_in::one_chunk, false>;
  using eviction = policy::evict_never;
  using recovery = policy::recover_never;

  /// Paddle prefers this one if the flag of the second version is set, too.
  [[nodiscard]] static constexpr bool accepts(const config::paddle::settings& settings) noexcept {
    return !settings.naive_best_fit && settings.chooses_virtual_memory_v1();
  }
  /// Returns the policies for settings that this recipe accepts; aborts for others.
  [[nodiscard]] static constexpr recipe::policies<paddle_virtual_memory> configured(
      const config::paddle::settings& settings) noexcept {
    if (!accepts(settings)) detail::fatal("paddle_virtual_memory::configured: settings for another recipe");
    const std::size_t pool_size = settings.vmm_small_pool_size;
    const std::size_t limit = settings.gpu_memory_limit;
    recipe::policies<paddle_virtual_memory> chosen{};
    chosen.pools.boundary = settings.multi_scale || pool_size == 0 ? pool_size : pool_size - 256;
    chosen.growth.limit = limit > 0 ? memory_limit(limit) : memory_limit();
    return chosen;
  }
};
static_assert(recipe::well_formed<paddle_virtual_memory>);

/// Makes the decisions of PaddlePaddle's use_vmm_auto_growth_best_fit_allocator_v2, its default since August 2026. It maps
/// chunks of one size at the end of a range of addresses. If the device refuses, idle chunks of large blocks move there.
/// As in Paddle, as many move as the device did not give, and none if fewer are idle. Paddle first moved more: all idle chunks
/// that the request could use, before the device gave the rest (pull request 79427).
///
/// Differences to Paddle:
///   * The rest of a hole that was mapped again coalesces with a free block after it at once. In Paddle, that waits until
///     a neighbour is freed.
///   * Idle chunks that a stream may still use are waited for. Paddle does not move them.
///   * Addresses that a moved chunk left serve again at once. Paddle leaves them until memory around them went back.
///   * Paddle does not enforce gpu_memory_limit_mb here; this recipe does.
///
/// Settings:
///   * `pools.boundary`: vmm_small_pool_size_in_mb, less 256 bytes; 0 means 2 MiB
///   * `growth.large`: vmm_v2_large_pool_handle_size_in_mb
///   * `growth.moves_idle_large`: vmm_v2_remap_on_oom
///   * `growth.limit`: gpu_memory_limit_mb, for this allocator only
///   Source:  RemapForAllocation and the rest of vmm_auto_growth_best_fit_allocator_v2.cc, and allocator_facade.cc, of July
///            2026; pull requests 79427, 79514 and 79605
struct paddle_virtual_memory_v2 final {
  using rounding = policy::round_to_multiple<256>;
  using pools = policy::newest_scope_first<policy::pool_small_and_large<tunable(1_MiB - 256)>>;
  using streams = policy::reuse_on_same_stream;
  using split = policy::split_if_remainder_at_least<256>;
  using pages = policy::normal_pages;
  using growth = policy::grow_at_end<2_MiB, tunable(16_MiB), 0, policy::append_in::units, tunable(true),
                                     tunable(memory_limit{}), 4>;
  using eviction = policy::evict_never;
  using recovery = policy::recover_never;

  [[nodiscard]] static constexpr bool accepts(const config::paddle::settings& settings) noexcept {
    return !settings.naive_best_fit && !settings.chooses_virtual_memory_v1() && settings.virtual_memory_v2;
  }
  /// Returns the policies for settings that this recipe accepts; aborts for others.
  [[nodiscard]] static constexpr recipe::policies<paddle_virtual_memory_v2> configured(
      const config::paddle::settings& settings) noexcept {
    if (!accepts(settings))
      detail::fatal("paddle_virtual_memory_v2::configured: settings for another recipe");
    const std::size_t pool_size = settings.vmm_small_pool_size;
    const std::size_t limit = settings.gpu_memory_limit;
    recipe::policies<paddle_virtual_memory_v2> chosen{};
    chosen.pools.boundary = (pool_size > 0 ? pool_size : 2_MiB) - 256;
    chosen.growth.large = settings.vmm_v2_handle_size;
    chosen.growth.moves_idle_large = settings.vmm_v2_remap_on_oom;
    chosen.growth.limit = limit > 0 ? memory_limit(limit) : memory_limit();
    return chosen;
  }
};
static_assert(recipe::well_formed<paddle_virtual_memory_v2>);

}  // namespace tessera::inline v0_1::recipe

namespace tessera::inline v0_1::recipe {

/// The recipes that Paddle's flags choose from.
struct paddle_family
    : detail::family<config::paddle, recipe::paddle_auto_growth, recipe::paddle_naive_best_fit,
                     recipe::paddle_virtual_memory, recipe::paddle_virtual_memory_v2> {
  /// For allocator_strategy=auto_growth.
  using auto_growth = recipe::paddle_auto_growth;
  /// For allocator_strategy=naive_best_fit.
  using naive_best_fit = recipe::paddle_naive_best_fit;
  /// For use_virtual_memory_auto_growth and use_multi_scale_virtual_memory_auto_growth.
  using virtual_memory = recipe::paddle_virtual_memory;
  /// For use_vmm_auto_growth_best_fit_allocator_v2.
  using virtual_memory_v2 = recipe::paddle_virtual_memory_v2;
};

/// The recipe for Paddle's flags, for example paddle<"FLAGS_allocator_strategy=naive_best_fit">.
template <detail::fixed_string Flags = "">
using paddle = paddle_family::from<Flags>;

}  // namespace tessera::inline v0_1::recipe
