// expect: Provider must be an ordering_provider for Recipe::streams
// SPDX-License-Identifier: Apache-2.0
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

struct only_events : tessera::provider::simulated_device {
  void is_ordered_after() const noexcept {}
};

int main() { tessera::caching_allocator<tessera::recipe::cuda_async, only_events> pool; }
