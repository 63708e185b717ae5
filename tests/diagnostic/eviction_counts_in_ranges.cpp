// expect first: Recipe::growth must use segments, because Recipe::eviction has counts_reuses or a call_clock
// SPDX-License-Identifier: Apache-2.0
#include "complete.hpp"

struct counts : tessera::policy::evict_never {
  static constexpr bool counts_reuses = true;
  bool operator==(const counts&) const = default;
};
struct my_recipe final : complete {
  using growth = tessera::recipe::stitched::growth;
  using eviction = counts;
};

int main() { tessera::caching_allocator<my_recipe, tessera::provider::simulated_device> pool; }
