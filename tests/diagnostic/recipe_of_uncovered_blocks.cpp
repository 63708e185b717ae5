// expect: segments are a multiple of min_alignment long
// SPDX-License-Identifier: Apache-2.0
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

struct uneven : tessera::policy::grow_exactly<> {
  static constexpr std::size_t segment_size(std::size_t block, const tessera::usage&) noexcept {
    return block + 1;
  }
  bool operator==(const uneven&) const = default;
};
using wrong = tessera::recipe::with<tessera::recipe::pytorch<>, uneven>;

int main() { tessera::caching_allocator<wrong, tessera::provider::simulated_device> pool; }
