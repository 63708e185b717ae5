// expect: for_each_group(F&) of an extension's state cannot be called with a function of a group
// SPDX-License-Identifier: Apache-2.0
#include <cstddef>

#include <tessera/detail/extensions/extension_set.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

struct misled {
  template <typename Core>
  struct state : tessera::detail::extension_defaults {
    state(typename Core::allocator&, const misled&) noexcept {}
    void for_each_group() noexcept {}
  };
  template <typename Allocator>
  struct door {};
};

int main() {
  tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device, misled> pool;
}
