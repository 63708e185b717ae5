// expect: a recipe with wait_for_events, such as symmetric, frees them only where the program asks
// SPDX-License-Identifier: Apache-2.0
#include <tessera/concurrent/background_reclaiming.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/recipe/symmetric.hpp>
#include <tessera/tessera.hpp>

using ranks = tessera::recipe::symmetric<tessera::recipe::pytorch<>>;

int main() {
  tessera::concurrent::background_reclaiming<
      tessera::caching_allocator<ranks, tessera::provider::simulated_device>>
      pool;
}
