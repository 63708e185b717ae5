// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

#include <tessera/policy/eviction.hpp>
#include <tessera/policy/split.hpp>
#include <tessera/policy/streams.hpp>
#include <tessera/recipe/recipe.hpp>
#include <tessera/recipe/with.hpp>

namespace tessera::inline v0_1::detail {

template <typename Streams>
struct waiting_streams {
  using type = policy::wait_for_events<Streams>;
};
template <typename Streams>
  requires(waits_for_events<Streams> || !Streams::uses_events)
struct waiting_streams<Streams> {
  using type = Streams;
};
template <typename Split>
struct split_by_age {
  using type = policy::ordered<Split, free_order::oldest_segment>;
};
template <typename Split>
  requires(free_order_of<Split> == free_order::oldest_segment ||
           free_order_of<Split> == free_order::newest_in_class)
struct split_by_age<Split> {
  using type = Split;
};

/// Stops the compiler if the placements of a recipe depend on addresses or on time.
template <typename Recipe>
consteval bool check_symmetric() {
  static_assert(
      !Recipe::streams::reuses_across_streams,
      "symmetric<Recipe>: its streams policy reuses blocks across streams, which depends on when their work "
      "ends; use reuse_on_same_stream [tessera/policy/streams.hpp]");
  static_assert(
      free_order_of<typename Recipe::split> != free_order::by_policy,
      "symmetric<Recipe>: its split policy has an order of its own, which may depend on addresses; use "
      "ordered<Split, free_order::oldest_segment> [tessera/policy/split.hpp]");
  static_assert(!hears_requests<typename Recipe::split>,
                "symmetric<Recipe>: its split policy learns from requests, and so from their addresses; use "
                "one without note_served [tessera/policy/split.hpp]");
  static_assert(
      !requires { typename Recipe::eviction::clock; } && !requires { typename Recipe::eviction::call_clock; },
      "symmetric<Recipe>: its eviction policy reads a clock, so ranks release memory at different requests; "
      "use one that counts requests or bytes [tessera/policy/eviction.hpp]");
  static_assert(std::is_same_v<typename Recipe::growth::backend, policy::segment_backend>,
                "symmetric<Recipe>: its growth policy maps memory into ranges, and takes the range at the "
                "lowest address; "
                "use one that grows by segments [tessera/policy/growth.hpp]");
  return true;
}
template <typename Recipe>
struct symmetric_of {
  static_assert(check_symmetric<Recipe>());
  using type = recipe::with<Recipe, typename waiting_streams<typename Recipe::streams>::type,
                            typename split_by_age<typename Recipe::split>::type>;
};

}  // namespace tessera::inline v0_1::detail

namespace tessera::inline v0_1::recipe {

/// `Recipe`, with placements that depend on the sequence of requests alone: neither on the addresses that the device gives,
/// nor on when streams complete their work. So ranks that run the same program place each block at the same offset of the
/// same segment, counted in the order of growth.
///
/// Choose it for memory that ranks register together, such as windows of NCCL's symmetric memory.
///
/// Two policies differ from `Recipe`. Of equal free blocks, that of the oldest segment serves. And the allocator waits for
/// the events of pending blocks instead of polling them, as wait_for_events [tessera/policy/streams.hpp] says: after a
/// miss, in process_events(), and in trim(). A recipe that cannot keep the promise does not compile.
///
/// What the program owes: one thread allocates; streams have the same handles in all ranks, or handles in the same order;
/// devices have the same capacity, and limits are the same; no request fails in one rank alone, because recovery then
/// releases memory there. An observer and a callback of on_pressure() must not change the allocator in one rank alone. There
/// is no trim_without_waiting(), because what it releases depends on time.
///
///     using ranks = tessera::recipe::symmetric<tessera::recipe::pytorch<>>;
///     tessera::caching_allocator<ranks, tessera::provider::simulated_device> allocator;
///     allocator.process_events();  // once a step: waits for all streams that still use freed blocks
template <typename Recipe>
using symmetric = typename detail::symmetric_of<Recipe>::type;

}  // namespace tessera::inline v0_1::recipe
