// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>

#include <tessera/core/bytes.hpp>
#include <tessera/core/number.hpp>
#include <tessera/core/usage.hpp>

namespace tessera {

/// Decides how a pool grows where nothing cached fits.
///
///   p.segment_size(block, now)   bytes to ask the device for, so that a block of `block` bytes fits
///   p.limit()                    the most bytes that may be reserved; `unlimited` leaves it to the device
///
/// Law, checked by law::growth: segment_size(n, now) >= n.
template <typename P>
concept growth_policy = std::regular<P> && requires(const P& p, std::size_t block, const usage& now) {
  { p.segment_size(block, now) } noexcept -> std::same_as<std::size_t>;
  { p.limit() } noexcept -> std::same_as<std::size_t>;
};

/// Takes a segment of just the block's size.
template <auto Limit = tunable(unlimited)>
struct grow_exactly {
  [[no_unique_address]] number<Limit> most{};

  [[nodiscard]] static constexpr std::size_t segment_size(std::size_t block, const usage&) noexcept {
    return block;
  }
  [[nodiscard]] constexpr std::size_t limit() const noexcept { return most; }
  bool operator==(const grow_exactly&) const = default;
};

/// Takes a `Small` segment for a block of at most half of it, a `Large` one for a block of less than half of that,
/// and otherwise the block's size, rounded up to a multiple of `Small`; all in bytes.
///   Source:  PyTorch, with 2 MiB and 20 MiB
template <std::size_t Small, std::size_t Large, auto Limit = tunable(unlimited)>
  requires(Small <= Large)
struct grow_by_segments {
  [[no_unique_address]] number<Limit> most{};

  [[nodiscard]] static constexpr std::size_t segment_size(std::size_t block, const usage&) noexcept {
    if (block <= Small / 2) return Small;
    return block < Large / 2 ? Large : align_up(block, Small);
  }
  [[nodiscard]] constexpr std::size_t limit() const noexcept { return most; }
  bool operator==(const grow_by_segments&) const = default;
};

}  // namespace tessera
