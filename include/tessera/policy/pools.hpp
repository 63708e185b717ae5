// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/core/parameter.hpp>

namespace tessera::inline v0_1::policy {

/// Decides which pool a block belongs to; blocks of different pools never share a segment.
///
///   P::count          number of pools
///   p.select(block)   pool of a block of `block` bytes, below count
///
/// Optional member: `max_small_block()`, the bytes up to which a block is small. It tells split and growth
/// policies which blocks have a pool of their own [tessera/core/parameter.hpp]. `unlimited` means that it does
/// not say. `newest_scope_decides`, if true, orders the scopes of extension::private_pools.
template <typename P>
concept pools_policy = detail::regular<P> && requires(const P& p, std::size_t block) {
  { P::count } -> std::convertible_to<std::size_t>;
  { p.select(block) } noexcept -> std::same_as<std::size_t>;
};

/// Keeps all blocks in one pool.
///
/// Choose it if one size class dominates, or if growth maps pages: then long-lived small blocks do little
/// harm.
struct pool_together {
  static constexpr const char* hint = "pool_together";  ///< what explain() suggests
  static constexpr std::size_t count = 1;
  [[nodiscard]] static constexpr std::size_t select(std::size_t) noexcept { return 0; }
  bool operator==(const pool_together&) const = default;
};

/// Keeps blocks of up to `boundary` bytes (pool 0) apart from larger ones (pool 1).
///
/// Choose it so that long-lived small blocks do not keep large segments from being released. With a boundary
/// of 0, every block is in pool 1.
///   Source:  PyTorch, with a boundary of 1 MiB; Paddle's small_pool_size_in_mb
template <auto Boundary>
struct pool_small_and_large {
  static_assert(
      detail::is_block_size_or_0(detail::initial_bytes<Boundary>()),
      "pool_small_and_large<Boundary>: Boundary is in bytes, at least min_alignment, or 0; write 1_MiB for "
      "1 MiB");
  static constexpr std::size_t count = 2;
  [[TESSERA_NO_UNIQUE_ADDRESS]] parameter<Boundary> boundary{};

  [[nodiscard]] constexpr std::size_t select(std::size_t block) const noexcept {
    return block <= boundary ? 0 : 1;
  }
  /// Bytes of the largest block of pool 0; `unlimited` if the boundary is 0.
  [[nodiscard]] constexpr std::size_t max_small_block() const noexcept {
    return boundary > 0 ? boundary.get() : unlimited;
  }
  bool operator==(const pool_small_and_large&) const = default;
};

/// Keeps blocks in the pools of `Pools`. If several scopes of private pools select a stream, the newest decides; without
/// this, the oldest does.
///
/// Choose it if scopes are nested, so that the inner one holds.
///   Source:  PyTorch 2.14 (get_pool); 2.6 asks the oldest first
template <typename Pools>
struct newest_scope_first : Pools {
  static_assert(pools_policy<Pools>,
                "newest_scope_first<Pools>: Pools is a pools policy, such as pool_together "
                "[tessera/policy/pools.hpp]");
  static constexpr bool newest_scope_decides = true;  ///< an allocator with private_pools reads it
  bool operator==(const newest_scope_first&) const = default;
};

}  // namespace tessera::inline v0_1::policy
