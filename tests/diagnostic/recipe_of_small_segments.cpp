// expect: growth covers: segment_size(n) >= n
// SPDX-License-Identifier: Apache-2.0
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

struct unlawful : tessera::policy::grow_by_segments<> {
  static constexpr std::size_t segment_size(std::size_t, const tessera::usage&) noexcept { return 1048576; }
  bool operator==(const unlawful&) const = default;
};
using recipe = tessera::recipe::with<tessera::recipe::pytorch<>, unlawful>;

int main() { tessera::caching_allocator<recipe, tessera::provider::simulated_device> pool; }
