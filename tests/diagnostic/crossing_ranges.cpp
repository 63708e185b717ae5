// expect first: Recipe::growth must use segments, because Recipe::streams reuses blocks across streams
// SPDX-License-Identifier: Apache-2.0
#include "complete.hpp"

struct recipe : complete {
  using streams = tessera::reuse_across_streams<>;
  using growth = tessera::grow_by_mapping<>;
};
template class tessera::caching_allocator<recipe, tessera::simulated_device>;
