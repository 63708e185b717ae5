// expect: pools: max_small_block() must be noexcept and return std::size_t
// SPDX-License-Identifier: Apache-2.0
#include "complete.hpp"

struct limit_of_int : tessera::policy::pool_small_and_large<(std::size_t{1} << 20)> {
  [[nodiscard]] static constexpr int max_small_block() noexcept { return 1 << 20; }
  bool operator==(const limit_of_int&) const = default;
};

int main() {
  tessera::caching_allocator<tessera::recipe::with<complete, limit_of_int>,
                             tessera::provider::simulated_device>
      pool;
}
