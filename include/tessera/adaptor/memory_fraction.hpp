// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>

#include <tessera/adaptor/reach.hpp>
#include <tessera/core/fraction.hpp>
#include <tessera/core/memory_limit.hpp>

/// PyTorch's set_per_process_memory_fraction, for every allocator whose growth has a limit that may be set.
namespace tessera {

/// Lets an allocator reserve at most a share of what its device has, beside the limit in bytes that it may have: 1 ends
/// that, and 0 refuses every new segment. What is reserved already stays, and what is cached still serves.
///
///     if (tessera::set_memory_fraction(pool, 0.25)) std::printf("%zu bytes at most\n", pool.now().limit);
///
///   Returns:  false where `share` is not from 0 to 1, and nothing has changed
template <typename Allocator>
[[nodiscard]] bool set_memory_fraction(Allocator& pool, double share) {
  if (!(share >= 0 && share <= 1)) return false;
  fraction rounded{static_cast<std::uint64_t>(std::llround(share * 1e9))};
  if (share < 1 && rounded == percent(100)) --rounded.billionths;
  for_each_settings(pool, [rounded](auto& settings) {
    settings.growth.most = memory_limit(memory_limit(settings.growth.most).bytes, rounded);
  });
  return true;
}

/// That share, to a billionth; of the allocator of one device.
template <typename Allocator>
[[nodiscard]] double memory_fraction(Allocator& pool) {
  double share = 1;
  for_each_settings(
      pool, [&share](const auto& settings) { share = memory_limit(settings.growth.most).share.value(); });
  return share;
}

}  // namespace tessera
