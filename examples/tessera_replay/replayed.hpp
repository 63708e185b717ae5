// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/caching_allocator.hpp>
#include <tessera/extension/private_pools.hpp>
#include <tessera/extension/sleep_mode.hpp>
#include <tessera/provider/simulated_device.hpp>

namespace replay {

template <typename Recipe, typename... Extension>
struct replayed_of {
  using type = tessera::caching_allocator<Recipe, tessera::provider::simulated_device,
                                          tessera::extension::private_pools, Extension...>;
};
template <typename Recipe, typename... Extension>
  requires(Recipe::growth::backend::has_ranges)
struct replayed_of<Recipe, Extension...> {
  using type = tessera::caching_allocator<Recipe, tessera::provider::simulated_device,
                                          tessera::extension::private_pools, tessera::extension::sleep_mode,
                                          Extension...>;
};
/// An allocator over a simulated device that executes what recordings contain: private pools, and sleeps if the recipe
/// maps memory into ranges.
template <typename Recipe, typename... Extension>
using replayed = typename replayed_of<Recipe, Extension...>::type;

}  // namespace replay
