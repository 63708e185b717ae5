// expect: pages: backing() names one to three kinds
// SPDX-License-Identifier: Apache-2.0
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

struct unlawful {
  static constexpr bool uses_page_kinds = false;
  static constexpr tessera::page_order backing(std::size_t) noexcept { return {}; }
  bool operator==(const unlawful&) const = default;
};
using recipe = tessera::recipe::with<tessera::recipe::pytorch<>, unlawful>;

int main() { tessera::caching_allocator<recipe, tessera::provider::simulated_device> pool; }
