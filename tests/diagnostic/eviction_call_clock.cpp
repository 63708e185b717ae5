// expect first: Recipe::eviction::call_clock must have static uint64_t now(const Provider&) noexcept
// SPDX-License-Identifier: Apache-2.0
#include "complete.hpp"

struct no_argument {
  static std::uint64_t now() noexcept { return 0; }
};
struct measures : tessera::policy::evict_never {
  using call_clock = no_argument;
  bool operator==(const measures&) const = default;
};
struct my_recipe final : complete {
  using eviction = measures;
};

int main() { tessera::caching_allocator<my_recipe, tessera::provider::simulated_device> pool; }
