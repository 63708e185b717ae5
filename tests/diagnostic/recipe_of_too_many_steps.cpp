// expect: recovery: steps() returns at most four steps
// SPDX-License-Identifier: Apache-2.0
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

struct unlawful {
  static constexpr tessera::policy::recovery_steps steps(tessera::policy::failure_reason) noexcept {
    return {{}, 5};
  }
  bool operator==(const unlawful&) const = default;
};
using recipe = tessera::recipe::with<tessera::recipe::pytorch<>, unlawful>;

int main() { tessera::caching_allocator<recipe, tessera::provider::simulated_device> pool; }
