// expect: Recipe::eviction must name an eviction_policy
// SPDX-License-Identifier: Apache-2.0
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

struct my_recipe final {
  using rounding = tessera::recipe::pytorch_family::native::rounding;
  using pools = tessera::recipe::pytorch_family::native::pools;
  using streams = tessera::recipe::pytorch_family::native::streams;
  using split = tessera::recipe::pytorch_family::native::split;
  using pages = tessera::recipe::pytorch_family::native::pages;
  using growth = tessera::recipe::pytorch_family::native::growth;
  using recovery = tessera::recipe::pytorch_family::native::recovery;
};

int main() { tessera::caching_allocator<my_recipe, tessera::provider::simulated_device> pool; }
