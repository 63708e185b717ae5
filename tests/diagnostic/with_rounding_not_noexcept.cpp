// expect first: Recipe::rounding must name a rounding_policy
// SPDX-License-Identifier: Apache-2.0
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

struct round_and_throw {
  static constexpr std::size_t block_size(std::size_t n) { return tessera::align_up(n, 512); }
  bool operator==(const round_and_throw&) const = default;
};
using wrong = tessera::recipe::with<tessera::recipe::pytorch<>, round_and_throw>;

int main() { tessera::caching_allocator<wrong, tessera::provider::simulated_device> pool; }
