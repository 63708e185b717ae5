// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/recipe/recipe.hpp>

namespace tessera {

/// Keeps freed blocks in size classes of powers of two and never splits them.
///
/// Choose it as a baseline: many pools of buffers work like this.
struct power_of_two final {
  using rounding = round_to_power_of_two<512>;
  using pools = pool_together;
  using streams = reuse_on_same_stream;
  using split = split_never<block_fit::exact>;
  using pages = back_with<page_plan::normal_only>;
  using growth = grow_exactly<>;
  using eviction = evict_never;
  using recovery = recover_by_emptying_cache<>;
};
static_assert(recipe<power_of_two>);

}  // namespace tessera
