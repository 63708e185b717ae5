// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/tool/simulated.hpp>

namespace replay {

/// An allocator over a simulated device that executes what recordings contain: private pools, and sleeps if the recipe
/// maps memory into ranges.
template <typename Recipe, typename... Extension>
using replayed = typename tessera::tool::detail::simulated<Recipe, Extension...>::type;

}  // namespace replay
