// expect first: name_the_extension_behind_the_provider_as_in_caching_allocator_of_recipe_provider_extension
// SPDX-License-Identifier: Apache-2.0
#include <tessera/concurrent/locked.hpp>
#include <tessera/extension/quotas.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

int main() {
  tessera::concurrent::locked<
      tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device>>
      memory;
  (void)memory.get<tessera::extension::quotas>().set({}, {.guaranteed = 1000});
}
