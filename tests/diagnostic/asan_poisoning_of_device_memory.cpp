// expect first: asan_poisoning: the provider must say is_host_visible, because AddressSanitizer knows host memory only
// SPDX-License-Identifier: Apache-2.0
#include <tessera/debug/asan_poisoning.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

int main() {
  tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device,
                             tessera::debug::asan_poisoning>
      pool;
}
