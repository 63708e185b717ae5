// expect: Recipe::rounding must name a rounding_policy
// SPDX-License-Identifier: Apache-2.0
#include <tessera/tessera.hpp>

struct misspelt {};
struct my_recipe final {
  using rounding = misspelt;
  using pools = tessera::pytorch::pools;
  using streams = tessera::pytorch::streams;
  using split = tessera::pytorch::split;
  using pages = tessera::pytorch::pages;
  using growth = tessera::pytorch::growth;
  using eviction = tessera::pytorch::eviction;
  using recovery = tessera::pytorch::recovery;
};

int main() { tessera::caching_allocator<my_recipe, tessera::simulated_device> pool; }
