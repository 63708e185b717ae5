// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include <tessera/config/paddle.hpp>
#include <tessera/core/bytes.hpp>
#include <tessera/core/fatal.hpp>
#include <tessera/recipe/recipe.hpp>

namespace tessera {

/// Makes the decisions of PaddlePaddle's naive_best_fit allocator. It acquires most of the device's memory as
/// its first chunk, and splits it.
///
/// A request larger than a chunk has its own segment, which is released when the block is freed. Each block
/// has 64 bytes of padding. There is no recovery. All streams share free blocks at once, because Paddle uses
/// one stream. A recorded stream delays reuse.
///
/// Settings:
///   * `growth.plan` and `eviction.plan`, which must be equal
///   * `growth.limit`: gpu_memory_limit_mb, for this allocator only
struct paddle_naive_best_fit final {
  using rounding = round_padded<64, round_to_multiple<256>>;
  using pools = pool_together;
  using streams = reuse_after_recorded_streams;
  using split = split_if_remainder_at_least<128>;
  using pages = back_with<page_plan::normal_only>;
  using growth = grow_by_plan<>;
  using eviction = evict_at_free_above_plan<>;
  using recovery = recover_never;

  [[nodiscard]] static constexpr bool serves(const config::paddle::settings& settings) noexcept {
    return settings.naive_best_fit;
  }
  /// Returns the policies for settings that it serves.
  [[nodiscard]] static constexpr policies<paddle_naive_best_fit> configured(
      const config::paddle::settings& settings) noexcept;
};
static_assert(recipe<paddle_naive_best_fit>);

constexpr policies<paddle_naive_best_fit> paddle_naive_best_fit::configured(
    const config::paddle::settings& settings) noexcept {
  if (!serves(settings)) detail::fatal("paddle_naive_best_fit::configured: settings for another recipe");
  const chunk_plan plan{settings.initial_gpu_memory, settings.reallocate_gpu_memory,
                        settings.fraction_of_gpu_memory};
  const std::size_t limit = settings.gpu_memory_limit;
  return {.growth = {.plan = plan, .limit = limit > 0 ? memory_limit(limit) : memory_limit()},
          .eviction = {.plan = plan}};
}

}  // namespace tessera
