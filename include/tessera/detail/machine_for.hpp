// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include <tessera/core/free_order.hpp>
#include <tessera/core/growth_way.hpp>
#include <tessera/detail/crossing_machine.hpp>
#include <tessera/detail/heap.hpp>
#include <tessera/detail/machine.hpp>
#include <tessera/detail/range_machine.hpp>
#include <tessera/detail/stitching_machine.hpp>

namespace tessera::detail {

/// The machine that grows in a way, and whose blocks cross from stream to stream or do not.
template <growth_way Way, typename Provider, typename Observer, typename Counting, std::size_t Pools,
          bool UsesEvents, bool Crosses = false, free_order Order = free_order::lowest_address>
struct machine_for {
  using type = range_machine<Provider, Observer, Counting, Pools, UsesEvents, Order>;
};
template <typename Provider, typename Observer, typename Counting, std::size_t Pools, bool UsesEvents,
          free_order Order>
struct machine_for<growth_way::segments, Provider, Observer, Counting, Pools, UsesEvents, false, Order> {
  using type = machine<Provider, Observer, Counting, heap<Pools, false, false, Order>, UsesEvents>;
};
template <typename Provider, typename Observer, typename Counting, std::size_t Pools, bool UsesEvents>
struct machine_for<growth_way::segments, Provider, Observer, Counting, Pools, UsesEvents, true> {
  using type = crossing_machine<Provider, Observer, Counting, Pools, UsesEvents>;
};

template <typename Provider, typename Observer, typename Counting, std::size_t Pools, bool UsesEvents>
struct machine_for<growth_way::stitching, Provider, Observer, Counting, Pools, UsesEvents> {
  using type = stitching_machine<Provider, Observer, Counting, Pools, UsesEvents>;
};

}  // namespace tessera::detail
