// expect first: Recipe::pools must name a pools_policy
// SPDX-License-Identifier: Apache-2.0
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

struct pool_by_size {
  static constexpr std::size_t count = 2;
  static constexpr std::size_t oversize_from() noexcept { return tessera::unlimited; }
  [[nodiscard]] std::size_t select(std::size_t block) const { return block > 512 ? 1 : 0; }
  bool operator==(const pool_by_size&) const = default;
};
using wrong = tessera::recipe::with<tessera::recipe::pytorch<>, pool_by_size>;

int main() { tessera::caching_allocator<wrong, tessera::provider::simulated_device> pool; }
