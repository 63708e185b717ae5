// expect first: name_the_extension_behind_the_provider_as_in_caching_allocator_of_recipe_provider_extension
// SPDX-License-Identifier: Apache-2.0
#include <tessera/configured.hpp>
#include <tessera/extension/quotas.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

int main() {
  using pool = tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device>;
  tessera::configured<tessera::recipe::pytorch_family, pool> memory({});
  (void)memory.get<tessera::extension::quotas>().set({}, {.guaranteed = 1000});
}
