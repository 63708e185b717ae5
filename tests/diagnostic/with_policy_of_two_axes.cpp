// expect first: with<>: a policy answers the questions of two axes
// SPDX-License-Identifier: Apache-2.0
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

struct both : tessera::policy::evict_never, tessera::policy::recover_never {
  bool operator==(const both&) const = default;
};
using wrong = tessera::recipe::with<tessera::recipe::pytorch<>, both>;

int main() { tessera::caching_allocator<wrong, tessera::provider::simulated_device> pool; }
