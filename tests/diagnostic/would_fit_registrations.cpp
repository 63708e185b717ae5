// expect: would_fit does not know which memory registrations and faulty_memory keep from requests
// SPDX-License-Identifier: Apache-2.0
#include <tessera/extension/registrations.hpp>
#include <tessera/observe/would_fit.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

int main() {
  tessera::caching_allocator<tessera::recipe::stitched, tessera::provider::simulated_device,
                             tessera::extension::registrations<>>
      memory;
  (void)tessera::observe::would_fit(memory, {{1024}});
}
