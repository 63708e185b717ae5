// expect: eviction evicts nothing if nothing is reserved
// SPDX-License-Identifier: Apache-2.0
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

struct unlawful : tessera::policy::evict_at_free<> {
  static constexpr std::size_t bytes_to_evict(tessera::policy::eviction_trigger,
                                              const tessera::usage&) noexcept {
    return 1;
  }
  bool operator==(const unlawful&) const = default;
};
using recipe = tessera::recipe::with<tessera::recipe::pytorch<>, unlawful>;

int main() { tessera::caching_allocator<recipe, tessera::provider::simulated_device> pool; }
