// expect: if it has value, that is double value(const idle_segment&) const noexcept
// SPDX-License-Identifier: Apache-2.0
#include "complete.hpp"

struct by_size : tessera::policy::evict_never {
  static std::size_t value(const tessera::policy::idle_segment& segment) noexcept { return segment.bytes; }
  bool operator==(const by_size&) const = default;
};
struct my_recipe final : complete {
  using eviction = by_size;
};

int main() { tessera::caching_allocator<my_recipe, tessera::provider::simulated_device> pool; }
