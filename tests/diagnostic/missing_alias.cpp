// expect: Recipe::eviction must name an eviction_policy
// SPDX-License-Identifier: Apache-2.0
#include <tessera/tessera.hpp>

struct my_recipe final {
  using rounding = tessera::pytorch::rounding;
  using pools = tessera::pytorch::pools;
  using streams = tessera::pytorch::streams;
  using split = tessera::pytorch::split;
  using pages = tessera::pytorch::pages;
  using growth = tessera::pytorch::growth;
  using recovery = tessera::pytorch::recovery;
};

int main() { tessera::caching_allocator<my_recipe, tessera::simulated_device> pool; }
