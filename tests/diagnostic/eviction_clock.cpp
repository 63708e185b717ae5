// expect: if it has a type clock, that has static uint64_t now() noexcept
// SPDX-License-Identifier: Apache-2.0
#include "complete.hpp"

struct seconds {
  static double now() noexcept { return 0; }
};
struct by_seconds : tessera::policy::evict_never {
  using clock = seconds;
  bool operator==(const by_seconds&) const = default;
};
struct my_recipe final : complete {
  using eviction = by_seconds;
};

int main() { tessera::caching_allocator<my_recipe, tessera::provider::simulated_device> pool; }
