// expect first: Recipe::growth must name a growth_policy
// SPDX-License-Identifier: Apache-2.0
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

struct grow_twofold {
  using backend = tessera::policy::segment_backend;
  static constexpr std::size_t segment_size(std::size_t block) noexcept { return 2 * block; }
  static constexpr tessera::memory_limit limit{};
  bool operator==(const grow_twofold&) const = default;
};
using wrong = tessera::recipe::with<tessera::recipe::pytorch<>, grow_twofold>;

int main() { tessera::caching_allocator<wrong, tessera::provider::simulated_device> pool; }
