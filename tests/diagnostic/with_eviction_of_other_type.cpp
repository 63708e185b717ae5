// expect first: Recipe::eviction must name an eviction_policy
// SPDX-License-Identifier: Apache-2.0
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

struct evict_a_half : tessera::policy::evict_at_free<> {
  static constexpr int bytes_to_evict(tessera::policy::eviction_trigger, const tessera::usage&) noexcept {
    return 0;
  }
  bool operator==(const evict_a_half&) const = default;
};
using wrong = tessera::recipe::with<tessera::recipe::pytorch<>, evict_a_half>;

int main() { tessera::caching_allocator<wrong, tessera::provider::simulated_device> pool; }
