// expect: rounding covers: block_size(n) >= n
// SPDX-License-Identifier: Apache-2.0
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

struct unlawful {
  static constexpr std::size_t block_size(std::size_t n) noexcept {
    return n < 4096 ? 4096 : n / 4096 * 4096;
  }
  bool operator==(const unlawful&) const = default;
};
using recipe = tessera::recipe::with<tessera::recipe::pytorch<>, unlawful>;

int main() { tessera::caching_allocator<recipe, tessera::provider::simulated_device> pool; }
