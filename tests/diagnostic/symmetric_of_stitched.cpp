// expect first: symmetric<Recipe>: its growth policy maps memory into ranges
// SPDX-License-Identifier: Apache-2.0
#include <tessera/provider/simulated_device.hpp>
#include <tessera/recipe/stitched.hpp>
#include <tessera/recipe/symmetric.hpp>
#include <tessera/tessera.hpp>

int main() {
  tessera::caching_allocator<tessera::recipe::symmetric<tessera::recipe::stitched>,
                             tessera::provider::simulated_device>
      pool;
}
