// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/recipe/recipe.hpp>

/// PyTorch's set_per_process_memory_fraction, for every allocator whose growth has a limit.

namespace tessera::inline v0_1::interop {

/// Sets a memory fraction in policies, before the allocator is made.
///   Returns:  false, and nothing changed, if `fraction` is not from 0 to 1
template <typename Recipe>
[[nodiscard]] constexpr bool set_memory_fraction(recipe::policies<Recipe>& settings,
                                                 double fraction) noexcept {
  static_assert(
      requires { settings.growth.limit = memory_limit{}; },
      "set_memory_fraction: the growth policy needs a member `limit` that can be set");
  if (!(fraction >= 0 && fraction <= 1)) return false;
  memory_limit limit(settings.growth.limit);
  const double billionths = fraction * 1e9;
  limit.share.billionths = static_cast<std::uint64_t>(billionths);
  if (billionths - static_cast<double>(limit.share.billionths) >= 0.5) ++limit.share.billionths;
  if (fraction < 1 && limit.share == percent(100)) --limit.share.billionths;
  limit.limits_at_100_percent = true;
  settings.growth.limit = limit;
  return true;
}

/// Limits what an allocator may reserve to a fraction of the device's memory, in addition to its limit in
/// bytes. 1 allows all of the memory; 0 rejects every new segment. Reserved memory stays reserved, and cached
/// blocks still serve requests.
///
/// The recipes of PyTorch and torch_npu collect garbage only under a memory fraction, and idle segments age only then. 1
/// ends that for pytorch_2_14; for the others, it is a fraction, too.
///
///     if (!tessera::interop::set_memory_fraction(allocator, 0.25)) return;
///     std::printf("%zu bytes at most\n", allocator.current_usage().limit);
///
///   Returns:  false, and nothing changed, if `fraction` is not from 0 to 1
template <typename Allocator>
[[nodiscard]] bool set_memory_fraction(Allocator& allocator, double fraction) {
  if (!(fraction >= 0 && fraction <= 1)) return false;
  allocator.for_each_device([fraction](auto& front, std::size_t) {
    bool had_limit = false;
    front.for_each_allocator([&had_limit](const auto& one) { had_limit = one.current_usage().has_limit; });
    front.visit_policies([fraction](auto& settings) { (void)set_memory_fraction(settings, fraction); });
    front.for_each_allocator([had_limit](auto& one) {
      const bool has_limit = one.current_usage().has_limit;
      if (had_limit && !has_limit) one.stop_decay();
      if (!had_limit && has_limit) one.resume_decay();
    });
  });
  return true;
}

/// Returns the memory fraction of the allocator of one device, to a billionth.
template <typename Allocator>
[[nodiscard]] double memory_fraction(Allocator& allocator) {
  double fraction = 1;
  allocator.visit_policies(
      [&fraction](const auto& settings) { fraction = memory_limit(settings.growth.limit).share.value(); });
  return fraction;
}

}  // namespace tessera::inline v0_1::interop
