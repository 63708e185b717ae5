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
///     struct split_small_blocks : tessera::split_never<> {
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

/// Asks policies the questions that take pool_traits. A policy without that argument is asked without it.
namespace detail {

template <typename Pools>
[[nodiscard]] constexpr pool_traits traits_of(const Pools& pools) noexcept {
  if constexpr (requires { pools.max_small_block(); }) {
    static_assert(
        noexcept(pools.max_small_block()) && std::same_as<decltype(pools.max_small_block()), std::size_t>,
        "pools: max_small_block() must be noexcept and return std::size_t");
    return {pools.max_small_block()};
  } else {
    return {};
  }
}

template <typename Policies>
[[nodiscard]] constexpr bool should_split(const Policies& p, std::size_t wanted, std::size_t block) noexcept {
  if constexpr (requires { p.split.should_split(wanted, block, pool_traits{}); }) {
    return p.split.should_split(wanted, block, traits_of(p.pools));
  } else {
    return p.split.should_split(wanted, block);
  }
}
template <typename Policies, typename Usage>
[[nodiscard]] constexpr std::size_t wanted_segment(const Policies& p, std::size_t block,
                                                   const Usage& now) noexcept {
  if constexpr (requires { p.growth.segment_size(block, now, pool_traits{}); }) {
    return p.growth.segment_size(block, now, traits_of(p.pools));
  } else {
    return p.growth.segment_size(block, now);
  }
}
template <typename Policies>
[[nodiscard]] constexpr std::size_t mapping_unit(const Policies& p, std::size_t block) noexcept {
  if constexpr (requires { p.growth.mapping_unit(block, pool_traits{}); }) {
    return p.growth.mapping_unit(block, traits_of(p.pools));
  } else {
    return p.growth.mapping_unit(block);
  }
}
template <typename Policies>
[[nodiscard]] constexpr std::size_t min_chunk(const Policies& p, std::size_t block) noexcept {
  if constexpr (requires { p.growth.min_chunk(block, pool_traits{}); }) {
    return p.growth.min_chunk(block, traits_of(p.pools));
  } else {
    return p.growth.min_chunk(block);
  }
}

}  // namespace detail
}  // namespace tessera
