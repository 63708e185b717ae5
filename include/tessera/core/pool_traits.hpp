// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>

#include <tessera/core/bytes.hpp>

namespace tessera {

/// The SmallLimit and Boundary of split and growth policies that take this limit from the pools policy.
inline constexpr std::size_t limit_of_pools = unlimited;

/// The limit of small blocks, which the pools policy owns, for split and growth policies. A policy
/// that needs it takes it as the last argument of its question, with the default `{}`.
///
///     struct split_small_blocks : tessera::policy::split_never<> {
///       [[nodiscard]] static constexpr bool should_split(std::size_t wanted, std::size_t block,
///                                                        tessera::pool_traits in = {}) noexcept {
///         return wanted <= in.small_limit_or(1_MiB) && block > wanted;
///       }
///       bool operator==(const split_small_blocks&) const = default;
///     };
struct pool_traits {
  /// Blocks of up to so many bytes have a pool of their own; `unlimited` if the pools policy does not say.
  std::size_t max_small_block = unlimited;

  /// The limit of small blocks in bytes; `otherwise` if the pools policy does not say.
  [[nodiscard]] constexpr std::size_t small_limit_or(std::size_t otherwise) const noexcept {
    return max_small_block != unlimited ? max_small_block : otherwise;
  }
  bool operator==(const pool_traits&) const = default;
};

}  // namespace tessera
