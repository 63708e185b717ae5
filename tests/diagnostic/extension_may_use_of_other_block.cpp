// expect: may_use of an extension's state must take (const block&, std::size_t, std::size_t)
// SPDX-License-Identifier: Apache-2.0
#include <cstddef>

#include <tessera/detail/extensions/extension_set.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

struct misled {
  template <typename Core>
  struct state : tessera::detail::extension_defaults {
    state(typename Core::allocator&, const misled&) noexcept {}
    bool may_use(tessera::detail::block&, std::size_t, std::size_t) noexcept { return false; }
  };
  template <typename Allocator>
  struct door {};
};

int main() {
  tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device, misled> pool;
}
