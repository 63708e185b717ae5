// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>

#include <tessera/core/bytes.hpp>
#include <tessera/core/fraction.hpp>

namespace tessera {

/// How a share of the device becomes a limit in bytes.
enum class share_rule : unsigned char {
  truncated,  ///< what is left of a byte does not count; the whole may be a limit, too
  nearest     ///< to the nearest byte; the whole is no limit
};

/// The most memory that may be reserved: so many bytes, and such a share of what the device has; the lesser counts. A share
/// of the whole is no limit, unless `holds_for_whole`.
///
///     constexpr tessera::memory_limit half_but_at_most(64_GiB, tessera::percent(50));
///     static_assert(half_but_at_most.on(80_GiB) == 40_GiB);
struct memory_limit {
  std::size_t bytes = unlimited;
  fraction share = percent(100);
  bool holds_for_whole = false;  ///< whether the limit of the whole share is what the device has

  constexpr memory_limit() noexcept = default;
  /// Of bytes in any whole number; what has a point is no share, which is a fraction.
  template <std::convertible_to<std::size_t> Bytes>
    requires(!std::floating_point<Bytes>)
  constexpr memory_limit(Bytes most) noexcept : bytes(static_cast<std::size_t>(most)) {}
  constexpr memory_limit(fraction most) noexcept : share(most) {}
  /// Of all members in their order, as nvcc writes a limit that is a template argument.
  constexpr memory_limit(std::size_t most, fraction of_device, bool whole_too = false) noexcept
      : bytes(most), share(of_device), holds_for_whole(whole_too) {}

  /// The limit in bytes, on a device of `capacity` bytes; `unlimited` where there is none.
  [[nodiscard]] constexpr std::size_t on(std::size_t capacity,
                                         share_rule rule = share_rule::truncated) const noexcept {
    const bool is_nearest = rule == share_rule::nearest;
    if (share == percent(100) && (!holds_for_whole || is_nearest)) return bytes;
    const std::size_t part = is_nearest ? share.nearest_of(capacity) : share.of(capacity);
    return part < bytes ? part : bytes;
  }
  bool operator==(const memory_limit&) const = default;
};
inline constexpr memory_limit no_limit{};

}  // namespace tessera
