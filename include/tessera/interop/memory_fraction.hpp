// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include <tessera/core/bytes.hpp>
#include <tessera/recipe/recipe.hpp>

/// PyTorch's set_per_process_memory_fraction, for every allocator whose growth has a limit that may be set.
namespace tessera {

/// Limits what an allocator that begins with these policies may reserve, as set_memory_fraction limits an allocator.
///   Returns:  false where `share` is not from 0 to 1, and nothing has changed
template <typename Recipe>
[[nodiscard]] constexpr bool set_memory_fraction(policies<Recipe>& chosen, double share) noexcept {
  static_assert(
      requires { chosen.growth.most = memory_limit{}; },
      "set_memory_fraction: the recipe's growth has no limit that may be set, a member `most`");
  if (!(share >= 0 && share <= 1)) return false;
  memory_limit most(chosen.growth.most);
  const double billionths = share * 1e9;
  most.share.billionths = static_cast<std::uint64_t>(billionths);
  if (billionths - static_cast<double>(most.share.billionths) >= 0.5) ++most.share.billionths;
  if (share < 1 && most.share == percent(100)) --most.share.billionths;
  most.limits_at_100_percent = true;
  chosen.growth.most = most;
  return true;
}

/// Lets an allocator reserve at most a share of what its device has, beside the limit in bytes that it may have: with 1
/// that is all of it, and 0 refuses every new segment. What is reserved already stays, and what is cached still serves.
///
/// The recipes of PyTorch and torch_npu collect garbage only once this was called, and idle segments age from then on.
///
///     if (tessera::set_memory_fraction(pool, 0.25)) std::printf("%zu bytes at most\n", pool.now().limit);
///
///   Returns:  false where `share` is not from 0 to 1, and nothing has changed
template <typename Allocator>
[[nodiscard]] bool set_memory_fraction(Allocator& pool, double share) {
  if (!(share >= 0 && share <= 1)) return false;
  pool.for_each_device([share](auto& front, std::size_t) {
    bool had_limit = false;
    front.with_settings([share, &had_limit](auto& settings) {
      had_limit = memory_limit(settings.growth.most) != memory_limit{};
      (void)set_memory_fraction(settings, share);
    });
    if (!had_limit) front.for_each_allocator([](auto& one) { one.restart_ages(); });
  });
  return true;
}

/// That share, to a billionth; of the allocator of one device.
template <typename Allocator>
[[nodiscard]] double memory_fraction(Allocator& pool) {
  double share = 1;
  pool.with_settings(
      [&share](const auto& settings) { share = memory_limit(settings.growth.most).share.value(); });
  return share;
}

}  // namespace tessera
