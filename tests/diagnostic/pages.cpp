// expect: Recipe::pages must name a pages_policy
// SPDX-License-Identifier: Apache-2.0
#include "complete.hpp"

struct misspelt {};
struct my_recipe final : complete {
  using pages = misspelt;
};

int main() { tessera::caching_allocator<my_recipe, tessera::provider::simulated_device> pool; }
