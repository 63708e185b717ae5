// expect first: Recipe::split must name a split_policy
// SPDX-License-Identifier: Apache-2.0
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

struct split_often : tessera::policy::split_never<> {
  bool should_split(std::size_t, std::size_t) noexcept { return true; }
  bool operator==(const split_often&) const = default;
};
using wrong = tessera::recipe::with<tessera::recipe::pytorch<>, split_often>;

int main() { tessera::caching_allocator<wrong, tessera::provider::simulated_device> pool; }
