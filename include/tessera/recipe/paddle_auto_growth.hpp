// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include <tessera/config/paddle.hpp>
#include <tessera/core/bytes.hpp>
#include <tessera/core/fatal.hpp>
#include <tessera/recipe/recipe.hpp>

namespace tessera {

/// Makes the decisions of auto_growth, PaddlePaddle's default allocator. It acquires a chunk if no free block
/// fits, and splits it from the high end.
///
/// Settings, off by default:
///   * `growth.large`: auto_growth_chunk_size_in_mb
///   * `eviction.at_free`, `eviction.before_growth`: free_idle_chunk, free_when_no_cache_hit
///   * `pools.boundary` and `growth.boundary`, which must be equal: small_pool_size_in_mb
///   * `growth.limit`: gpu_memory_limit_mb, for this allocator only
///   * `recovery.accepts_exact_size`: not Paddle's
///
/// A recorded stream delays reuse for the work submitted before the free. In Paddle, it counts the work
/// submitted before record_stream.
struct paddle_auto_growth final {
  using rounding = round_to_multiple<256>;
  using pools = pool_small_and_large<tunable(std::size_t{0})>;
  using streams = reuse_on_same_stream;
  using split = split_if_remainder_at_least<min_alignment, block_end::high>;
  using pages = back_with<page_plan::normal_only>;
  using growth = grow_by_chunks<>;
  using eviction = evict_idle_segments<>;
  using recovery = recover_by_emptying_cache<tunable(false)>;

  [[nodiscard]] static constexpr bool serves(const config::paddle::settings& settings) noexcept {
    return !settings.naive_best_fit;
  }
  /// Returns the policies for settings that it serves.
  [[nodiscard]] static constexpr policies<paddle_auto_growth> configured(
      const config::paddle::settings& settings) noexcept;
};
static_assert(recipe<paddle_auto_growth>);

constexpr policies<paddle_auto_growth> paddle_auto_growth::configured(
    const config::paddle::settings& settings) noexcept {
  if (!serves(settings)) detail::fatal("paddle_auto_growth::configured: settings for another recipe");
  const bool two_pools = settings.small_pool_size > 0;  // then their chunk sizes override the general size
  const std::size_t large = two_pools ? settings.large_pool_chunk_size : settings.auto_growth_chunk_size;
  const std::size_t limit = settings.gpu_memory_limit;
  return {
      .pools = {.boundary = settings.small_pool_size},
      .growth = {.small = settings.small_pool_chunk_size,
                 .large = large,
                 .boundary = settings.small_pool_size,
                 .limit = limit > 0 ? memory_limit(limit) : memory_limit()},
      .eviction = {.before_growth = settings.free_when_no_cache_hit, .at_free = settings.free_idle_chunk}};
}

}  // namespace tessera
