// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/recipe/recipe.hpp>

namespace tessera::inline v0_1::recipe {

/// Acquires memory from the device at each request, and releases it at each free. It has no cache.
///
/// Choose it as a baseline, or to find use-after-free with the device's own tools.
struct passthrough final {
  using rounding = policy::round_to_multiple<512>;
  using pools = policy::newest_scope_first<policy::pool_together>;
  using streams = policy::reuse_on_same_stream;
  using split = policy::split_never<>;
  using pages = policy::normal_pages;
  using growth = policy::grow_exactly<>;
  using eviction = policy::evict_at_free<>;
  using recovery = policy::recover_by_emptying_cache<>;
};
static_assert(well_formed<passthrough>);

}  // namespace tessera::inline v0_1::recipe
