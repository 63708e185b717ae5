// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/core/parameter.hpp>
#include <tessera/provider/provider.hpp>

/// Asks the policies of a recipe, and aborts if an answer breaks a law.

namespace tessera::inline v0_1::detail {

/// Aborts if a policy returns an invalid number. The message names the broken rule.
[[noreturn, gnu::noinline, gnu::cold]] inline void refuse_answer(const char* question, std::size_t asked,
                                                                 std::size_t answer,
                                                                 const char* rule) noexcept {
  fixed_text text;
  text.add("Recipe::").add(question).add("(").add(asked).add(") is ").add(answer).add("; ").add(rule);
  fatal(text.c_str());
}

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

/// The size of the block that serves a request.
template <typename Rounding>
[[nodiscard]] inline std::size_t block_size_for(const Rounding& rounding, std::size_t bytes) noexcept {
  const std::size_t size = rounding.block_size(bytes);
  if constexpr (!is_verified_rounding<Rounding>) {
    if (size - bytes > max_request || size % min_alignment != 0)
      refuse_answer("rounding: block_size", bytes, size,
                    "a block holds the request, and is a multiple of min_alignment, 64 bytes, below 2^61");
  }
  return size;
}

/// The pool of a block.
template <typename Pools>
[[nodiscard]] inline std::size_t pool_for(const Pools& pools, std::size_t size) noexcept {
  const std::size_t pool = pools.select(size);
  if (pool >= Pools::count) refuse_answer("pools: select", size, pool, "a pool's number is below count");
  return pool;
}

/// Whether a use by stream `user` delays the reuse of a block of stream `owner`.
template <typename Streams>
[[nodiscard]] bool delays_reuse(const Streams& streams, stream_id owner, stream_id user) noexcept {
  return Streams::uses_events && streams.needs_event(streams.reuse_key(owner), user);
}

template <typename Manager, typename Growth>
[[nodiscard, gnu::always_inline]] inline usage usage_of(const Manager& manager,
                                                        const Growth& growth) noexcept {
  return manager.usage_under(growth.limit.on(manager.provider().capacity()));
}

/// Bytes to request from the device for a block of `size` bytes: the size that growth chooses, or exactly
/// `size`, in whole pages.
template <typename Manager, typename Policies>
[[nodiscard]] std::size_t segment_size_for(const Manager& manager, const Policies& p, usage now,
                                           std::size_t size, bool exactly = false) noexcept {
  const std::size_t max = saturating_add(now.reserved, left_on(manager.provider(), now.reserved));
  if (max < now.limit) now.limit = max;
  if (now.limit > unlimited / 2) now.limit = unlimited / 2;  // so that a share of the limit never overflows
  const std::size_t wanted = exactly ? size : wanted_segment(p, size, now);
  if (wanted < size || wanted > unlimited / 2)
    refuse_answer("growth: segment_size", size, wanted,
                  "a segment must hold the block it is taken for, and be smaller than 2^63");
  return in_whole_pages(p.pages, align_up(wanted, manager.provider().granularity()));
}
template <typename Manager, typename Policies>
[[nodiscard]] std::size_t segment_size_for(const Manager& manager, const Policies& p, std::size_t size,
                                           bool exactly = false) noexcept {
  return segment_size_for(manager, p, usage_of(manager, p.growth), size, exactly);
}

}  // namespace tessera::inline v0_1::detail
