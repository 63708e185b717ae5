// expect: if it has precedes, bool precedes(const free_block&, const free_block&, const wanted_block&) const noexcept
// SPDX-License-Identifier: Apache-2.0
#include "complete.hpp"

struct by_address : tessera::policy::split_below<> {
  static bool precedes(const tessera::free_block& a, const tessera::free_block& b) noexcept {
    return a.address < b.address;
  }
  bool operator==(const by_address&) const = default;
};
struct my_recipe final : complete {
  using split = by_address;
};

int main() { tessera::caching_allocator<my_recipe, tessera::provider::simulated_device> pool; }
