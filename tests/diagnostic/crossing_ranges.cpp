// expect first: Recipe::growth must use segments, because Recipe::streams reuses blocks across streams
// SPDX-License-Identifier: Apache-2.0
#include "complete.hpp"

#include <tessera/policy/reuse_across_streams.hpp>

struct recipe : complete {
  using streams = tessera::policy::reuse_across_streams<>;
  using growth = tessera::policy::grow_by_mapping<>;
};
template class tessera::caching_allocator<recipe, tessera::provider::simulated_device>;
