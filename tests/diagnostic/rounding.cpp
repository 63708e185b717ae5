// expect: Recipe::rounding must name a rounding_policy
// SPDX-License-Identifier: Apache-2.0
#include "complete.hpp"

struct misspelt {};
struct my_recipe final : complete {
  using rounding = misspelt;
};

int main() { tessera::caching_allocator<my_recipe, tessera::provider::simulated_device> pool; }
