// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/recipe/recipe.hpp>

namespace tessera {

/// Acquires memory from the device at each request, and releases it at each free. It has no cache.
///
/// Choose it as a baseline, or to find use-after-free with the device's own tools.
struct passthrough final {
  using rounding = round_to_multiple<512>;
  using pools = pool_together;
  using streams = reuse_on_same_stream;
  using split = split_never<>;
  using pages = back_with<page_plan::normal_only>;
  using growth = grow_exactly<>;
  using eviction = evict_at_free<>;
  using recovery = recover_by_emptying_cache<>;
};
static_assert(recipe<passthrough>);

}  // namespace tessera
