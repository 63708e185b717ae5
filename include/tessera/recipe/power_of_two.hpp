// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/recipe/recipe.hpp>

namespace tessera::inline v0_1::recipe {

/// Keeps freed blocks in size classes of powers of two and never splits them.
///
/// Choose it as a baseline: many pools of buffers work like this.
struct power_of_two final {
  using rounding = policy::round_to_power_of_two<512>;
  using pools = policy::newest_scope_first<policy::pool_together>;
  using streams = policy::reuse_on_same_stream;
  using split = policy::split_never<policy::block_fit::exact>;
  using pages = policy::normal_pages;
  using growth = policy::grow_exactly<>;
  using eviction = policy::evict_never;
  using recovery = policy::recover_by_emptying_cache<>;
};
static_assert(well_formed<power_of_two>);

}  // namespace tessera::inline v0_1::recipe
