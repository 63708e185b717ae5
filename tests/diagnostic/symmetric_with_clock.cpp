// expect first: symmetric<Recipe>: its eviction policy reads a clock
// SPDX-License-Identifier: Apache-2.0
#include <tessera/policy/evict_after.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/recipe/symmetric.hpp>
#include <tessera/tessera.hpp>

using timed = tessera::recipe::with<tessera::recipe::pytorch<>, tessera::policy::evict_after<>>;

int main() {
  tessera::caching_allocator<tessera::recipe::symmetric<timed>, tessera::provider::simulated_device> pool;
}
