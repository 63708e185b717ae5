// expect first: with<>: a policy is regular
// SPDX-License-Identifier: Apache-2.0
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

struct recover_somehow {
  static constexpr tessera::policy::recovery_steps steps(tessera::policy::failure_reason) noexcept {
    return {};
  }
};
using wrong = tessera::recipe::with<tessera::recipe::pytorch<>, recover_somehow>;

int main() { tessera::caching_allocator<wrong, tessera::provider::simulated_device> pool; }
