// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include <tessera/core/bytes.hpp>
#include <tessera/core/page.hpp>
#include <tessera/core/parameter.hpp>
#include <tessera/core/pool_traits.hpp>
#include <tessera/core/statistics.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/detail/backend.hpp>
#include <tessera/provider/provider.hpp>

/// Asks the policies of a recipe, and aborts if an answer breaks a law.
namespace tessera::detail {

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
[[nodiscard]] std::size_t segment_size_for(const Manager& manager, const Policies& p, std::size_t size,
                                           bool exactly = false) noexcept {
  usage now = usage_of(manager, p.growth);
  const std::size_t max = saturating_add(now.reserved, left_on(manager.provider(), now.reserved));
  if (max < now.limit) now.limit = max;
  if (now.limit > unlimited / 2) now.limit = unlimited / 2;  // so that a share of the limit never overflows
  const std::size_t wanted = exactly ? size : wanted_segment(p, size, now);
  if (wanted < size || wanted > unlimited / 2)
    refuse_answer("growth: segment_size", size, wanted,
                  "a segment must hold the block it is taken for, and be smaller than 2^63");
  return in_whole_pages(p.pages, align_up(wanted, manager.provider().granularity()));
}

}  // namespace tessera::detail
