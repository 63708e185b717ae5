// expect: split leaves no empty remainder: should_split(n, n) is false
// SPDX-License-Identifier: Apache-2.0
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

struct unlawful : tessera::policy::split_never<> {
  static constexpr bool should_split(std::size_t, std::size_t) noexcept { return true; }
  bool operator==(const unlawful&) const = default;
};
using recipe = tessera::recipe::with<tessera::recipe::pytorch<>, unlawful>;

int main() { tessera::caching_allocator<recipe, tessera::provider::simulated_device> pool; }
