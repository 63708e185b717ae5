// expect: if it has note_served, void note_served(const served_request&) noexcept
// SPDX-License-Identifier: Apache-2.0
#include "complete.hpp"

struct counts : tessera::policy::split_below<> {
  std::size_t requests = 0;
  void note_served(std::size_t) noexcept { ++requests; }
  bool operator==(const counts&) const = default;
};
struct my_recipe final : complete {
  using split = counts;
};

int main() { tessera::caching_allocator<my_recipe, tessera::provider::simulated_device> pool; }
