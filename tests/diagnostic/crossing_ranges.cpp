// expect first: Recipe::growth must take segments where Recipe::streams lets blocks cross
// SPDX-License-Identifier: Apache-2.0
#include "complete.hpp"

struct recipe : complete {
  using streams = tessera::reuse_across_streams<>;
  using growth = tessera::grow_by_pages<>;
};
template class tessera::caching_allocator<recipe, tessera::simulated_device>;
