// expect: Recipe::eviction must name an eviction_policy
// SPDX-License-Identifier: Apache-2.0
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

struct my_recipe final {
  using rounding = tessera::pytorch_family::native::rounding;
  using pools = tessera::pytorch_family::native::pools;
  using streams = tessera::pytorch_family::native::streams;
  using split = tessera::pytorch_family::native::split;
  using pages = tessera::pytorch_family::native::pages;
  using growth = tessera::pytorch_family::native::growth;
  using recovery = tessera::pytorch_family::native::recovery;
};

int main() { tessera::caching_allocator<my_recipe, tessera::simulated_device> pool; }
