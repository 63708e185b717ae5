// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include <tessera/core/bytes.hpp>
#include <tessera/core/page.hpp>
#include <tessera/core/statistics.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/detail/backend.hpp>
#include <tessera/law/policies.hpp>
#include <tessera/policy/eviction.hpp>
#include <tessera/policy/growth.hpp>
#include <tessera/policy/pages.hpp>
#include <tessera/policy/pools.hpp>
#include <tessera/policy/recovery.hpp>
#include <tessera/policy/rounding.hpp>
#include <tessera/policy/split.hpp>
#include <tessera/policy/streams.hpp>
#include <tessera/provider/provider.hpp>
#include <tessera/recipe/recipe.hpp>

/// Checks the policies of a recipe against their laws. The compiler checks sample points; at run time, each
/// result of a policy is checked.
namespace tessera::detail {

/// Calls each member that the law of a policy's axis uses once.
template <typename P>
constexpr int ask_once(const P& p) {
  if constexpr (rounding_policy<P>) (void)p.block_size(1);
  if constexpr (pools_policy<P>) (void)p.select(min_alignment);
  if constexpr (streams_policy<P>) {
    (void)p.needs_event(stream_id(p.reuse_key(stream_id{})), stream_id{});
    (void)p.reuse_rules();
  }
  if constexpr (split_policy<P>) {
    (void)p.should_split(min_alignment, 2 * min_alignment);
    (void)p.may_serve(min_alignment, 2 * min_alignment);
    (void)p.oversize();
  }
  if constexpr (pages_policy<P>) (void)p.backing(min_alignment);
  if constexpr (growth_policy<P>) (void)p.segment_size(min_alignment, usage{});
  if constexpr (expandable_backend::accepts_growth<P>) {
    (void)p.page_size(min_alignment);
    (void)p.base_alignment(min_alignment);
    (void)p.range_size(min_alignment);
  }
  if constexpr (stitching_backend::accepts_growth<P>) {
    (void)p.move_threshold(stitching_backend::growth_state{});
    (void)p.max_chunk(stitching_backend::growth_state{});
  }
  if constexpr (eviction_policy<P>) {
    (void)p.bytes_to_evict(eviction_trigger::before_growth, usage{});
    (void)p.is_candidate(min_alignment, usage{});
  }
  if constexpr (recovery_policy<P>) (void)p.steps(failure_reason::by_device);
  return 0;
}
/// Whether a policy works in constant expressions. Other policies are checked only at run time.
template <typename P, int = ask_once(P{})>
constexpr bool answers_in_constants(int) {
  return true;
}
template <typename P>
constexpr bool answers_in_constants(long) {
  return false;
}

/// Checks the law of a policy's axis at sample points.
template <typename P>
constexpr bool keeps_law(const P& p) {
  if constexpr (rounding_policy<P>) return law::rounding(p);
  if constexpr (pools_policy<P>) return law::pools(p);
  if constexpr (streams_policy<P>) return law::streams(p);
  if constexpr (split_policy<P>) return law::split(p);
  if constexpr (pages_policy<P>) return law::pages(p);
  if constexpr (growth_policy<P>) return law::growth(p);
  if constexpr (eviction_policy<P>) return law::eviction(p);
  if constexpr (recovery_policy<P>) return law::recovery(p);
}
/// Stops the compiler if a policy with its initial numbers breaks its law.
template <typename P>
inline constexpr bool is_lawful = true;
template <typename P>
  requires(answers_in_constants<P>(0))
inline constexpr bool is_lawful<P> = keeps_law(P{});

/// Stops the compiler, and names the wrong alias of a recipe or the law that a policy breaks.
template <typename Recipe>
consteval bool check_policies() {
  if constexpr (recipe<Recipe>) {
    return is_lawful<typename Recipe::rounding> && is_lawful<typename Recipe::pools> &&
           is_lawful<typename Recipe::streams> && is_lawful<typename Recipe::split> &&
           is_lawful<typename Recipe::pages> && is_lawful<typename Recipe::growth> &&
           is_lawful<typename Recipe::eviction> && is_lawful<typename Recipe::recovery>;
  } else {
    return check_recipe<Recipe>();
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

template <typename Manager, typename Growth>
[[nodiscard, gnu::always_inline]] inline usage usage_of(const Manager& manager,
                                                        const Growth& growth) noexcept {
  return manager.usage_under(growth.limit.on(manager.provider().capacity()));
}

/// Bytes to request from the device for a block of `size` bytes: the size that growth chooses, or exactly
/// `size`, in whole pages.
template <typename Recipe, typename Manager>
[[nodiscard]] std::size_t segment_size_for(const Manager& manager, const policies<Recipe>& p,
                                           std::size_t size, bool exactly = false) noexcept {
  usage now = usage_of(manager, p.growth);
  const std::size_t max = saturating_add(now.reserved, left_on(manager.provider(), now.reserved));
  if (max < now.limit) now.limit = max;
  if (now.limit > unlimited / 2) now.limit = unlimited / 2;  // so that a share of the limit never overflows
  const std::size_t wanted = exactly ? size : p.growth.segment_size(size, now);
  if (wanted < size || wanted > unlimited / 2)
    refuse_answer("growth: segment_size", size, wanted,
                  "a segment must hold the block it is taken for, and be smaller than 2^63");
  return in_whole_pages(p.pages, align_up(wanted, manager.provider().granularity()));
}

/// The reason why a segment is refused without a device call; by_device if the device may be called.
template <typename Recipe, typename Manager>
[[nodiscard]] failure_reason predict_failure(const Manager& manager, const policies<Recipe>& p,
                                             std::size_t segment) noexcept {
  const std::size_t capacity = manager.provider().capacity();
  if (manager.would_exceed_limit(p.growth.limit.on(capacity), segment)) return failure_reason::by_limit;
  if constexpr (requires { Recipe::recovery::checks_capacity; }) {
    if (Recipe::recovery::checks_capacity && manager.would_exceed_limit(capacity, segment))
      return failure_reason::by_capacity;
  }
  return failure_reason::by_device;
}

}  // namespace tessera::detail
