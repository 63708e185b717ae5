// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/detail/policies/ask_policies.hpp>
#include <tessera/law/policy_laws.hpp>
#include <tessera/policy/evict_after.hpp>
#include <tessera/recipe/recipe.hpp>

namespace tessera::inline v0_1::law::detail {

/// Requires that numbers which occur in several policies are equal.
template <typename R>
constexpr void require_agreement(const recipe::policies<R>& p) {
  const std::size_t limit = tessera::detail::traits_of(p.pools).max_small_block;
  if (limit != limit_of_pools) {
    const auto agrees = [&](std::size_t stated) { return stated == limit_of_pools || stated == limit; };
    if constexpr (requires { R::split::max_small_block; })
      detail::must_hold(agrees(R::split::max_small_block),
                        "pools and split agree on small blocks: pools.boundary == split::max_small_block");
    if constexpr (requires { R::growth::max_small_block; })
      detail::must_hold(agrees(R::growth::max_small_block),
                        "pools and growth agree on small blocks: pools.boundary == growth::max_small_block");
    if constexpr (requires { p.growth.boundary; })
      detail::must_hold(agrees(p.growth.boundary.get()),
                        "pools and growth agree on small blocks: pools.boundary == growth.boundary");
    detail::must_hold(limit < p.split.oversize_from(),
                      "no small block is oversize: pools.boundary < split.oversize_from()");
  }
  if constexpr (requires { p.growth.schedule.get() == p.eviction.schedule.get(); })
    detail::must_hold(p.growth.schedule.get() == p.eviction.schedule.get(),
                      "growth and eviction follow one schedule of chunks");
}

/// Requires that segments hold the blocks for which they are taken.
template <typename R>
constexpr void require_room(const recipe::policies<R>& p) {
  for (std::size_t n : edge_sizes()) {
    const std::size_t size = p.rounding.block_size(n);
    const std::size_t segment =
        tessera::detail::in_whole_pages(p.pages, tessera::detail::wanted_segment(p, size, usage{}));
    must_hold(segment >= size, "growth covers every block: segment_size(block_size(n)) >= block_size(n)");
    must_hold(segment % min_alignment == 0, "segments are a multiple of min_alignment long");
  }
}

}  // namespace tessera::inline v0_1::law::detail

namespace tessera::inline v0_1::law {

/// Checks that a recipe's policies obey their own laws and fit together. Returns true, or stops the compiler
/// and names the broken law. with<> checks this with its initial numbers, as far as the policies answer in constant
/// expressions. For a recipe that is written by hand, a static_assert does.
///
///     using padded = tessera::recipe::with<tessera::recipe::pytorch<>, tessera::policy::round_padded<64, tessera::policy::round_to_multiple<256>>>;
///     static_assert(tessera::law::recipe<padded>());
template <tessera::recipe::well_formed R>
constexpr bool recipe(const recipe::policies<R>& p = {}) {
  bool holds = policy(p.rounding) && policy(p.pools) && policy(p.streams) && policy(p.split) &&
               policy(p.pages) && policy(p.growth) && policy(p.eviction) && policy(p.recovery);
  detail::require_room<R>(p);
  detail::require_agreement<R>(p);
  return holds;
}

}  // namespace tessera::inline v0_1::law

namespace tessera::inline v0_1::detail {

/// Calls each member of a policy once.
template <typename P>
constexpr int ask_once(const P& p) {
  if constexpr (policy::rounding_policy<P>) (void)p.block_size(1);
  if constexpr (policy::pools_policy<P>) (void)p.select(min_alignment);
  if constexpr (policy::streams_policy<P>) {
    (void)p.needs_event(stream_id(p.reuse_key(stream_id{})), stream_id{});
    (void)p.reuse_rules();
    (void)p.should_poll_events(0);
  }
  if constexpr (policy::split_policy<P>) {
    (void)p.should_split(min_alignment, 2 * min_alignment);
    (void)p.may_serve(min_alignment, 2 * min_alignment);
    (void)p.allocated_end();
    (void)p.oversize_from();
    if constexpr (has_own_order<P>) (void)p.precedes(free_block{}, free_block{}, wanted_block{});
    if constexpr (hears_requests<P>) P(p).note_served(served_request{});
  }
  if constexpr (policy::pages_policy<P>) (void)p.backing(min_alignment);
  if constexpr (policy::growth_policy<P>) (void)p.segment_size(min_alignment, usage{});
  if constexpr (tessera::detail::answers_range_questions<P>) {
    (void)p.mapping_unit(min_alignment);
    (void)p.base_alignment(min_alignment);
    (void)p.range_size(min_alignment);
  }
  if constexpr (tessera::detail::answers_moving_questions<P>) {
    (void)p.move_threshold(tessera::detail::growth_state{});
    (void)p.max_chunk(tessera::detail::growth_state{});
    (void)p.min_chunk(min_alignment);
    (void)p.should_save_pages(0, 0);
  }
  if constexpr (policy::eviction_policy<P>) {
    (void)p.bytes_to_evict(policy::eviction_trigger::before_growth, usage{});
    (void)p.is_candidate(min_alignment, usage{});
    (void)p.should_evict(policy::idle_segment{.bytes = min_alignment, .candidates = 1});
    if constexpr (ranks_segments<P>) (void)p.value(policy::idle_segment{.bytes = min_alignment});
    if constexpr (decaying_policy<P>) (void)p.bytes_to_keep(min_alignment, p.decay_time() / 2);
  }
  if constexpr (policy::recovery_policy<P>) (void)p.steps(policy::failure_reason::by_device);
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

/// Stops the compiler if a policy with its initial numbers breaks its law.
template <typename P>
inline constexpr bool is_lawful = true;
template <typename P>
  requires(answers_in_constants<P>(0))
inline constexpr bool is_lawful<P> = law::policy(P{});

/// Stops the compiler if the policies of a recipe, with their initial numbers, do not fit together.
template <typename R>
consteval bool check_fit() {
  constexpr bool answers = answers_in_constants<typename R::pools>(0) &&
                           answers_in_constants<typename R::split>(0) &&
                           answers_in_constants<typename R::growth>(0);
  if constexpr (answers && answers_in_constants<typename R::eviction>(0))
    law::detail::require_agreement<R>(recipe::policies<R>{});
  if constexpr (answers && answers_in_constants<typename R::rounding>(0) &&
                answers_in_constants<typename R::pages>(0))
    law::detail::require_room<R>(recipe::policies<R>{});
  return true;
}

/// Stops the compiler, and names the wrong alias of a recipe or the law that a policy breaks.
template <typename Recipe>
consteval bool check_policies() {
  if constexpr (tessera::recipe::well_formed<Recipe>) {
    return is_lawful<typename Recipe::rounding> && is_lawful<typename Recipe::pools> &&
           is_lawful<typename Recipe::streams> && is_lawful<typename Recipe::split> &&
           is_lawful<typename Recipe::pages> && is_lawful<typename Recipe::growth> &&
           is_lawful<typename Recipe::eviction> && is_lawful<typename Recipe::recovery> &&
           check_fit<Recipe>();
  } else {
    return check_recipe<Recipe>();
  }
}

}  // namespace tessera::inline v0_1::detail
