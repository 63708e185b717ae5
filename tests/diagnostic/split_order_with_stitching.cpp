// expect first: Recipe::split must use free_order::lowest_address
// SPDX-License-Identifier: Apache-2.0
#include "complete.hpp"

struct by_address : tessera::policy::split_below<> {
  static bool precedes(const tessera::free_block& a, const tessera::free_block& b,
                       const tessera::wanted_block&) noexcept {
    return a.address < b.address;
  }
  bool operator==(const by_address&) const = default;
};
struct my_recipe final : complete {
  using split = by_address;
  using growth = tessera::recipe::stitched::growth;
};

int main() { tessera::caching_allocator<my_recipe, tessera::provider::simulated_device> pool; }
