// expect: on_event of an extension's state must take (const allocator_event&)
// SPDX-License-Identifier: Apache-2.0
#include <cstddef>

#include <tessera/detail/extensions/extension_set.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

struct misled {
  template <typename Core>
  struct state : tessera::detail::extension_defaults {
    state(typename Core::allocator&, const misled&) noexcept {}
    void on_event(tessera::allocator_event&) noexcept {}
  };
  template <typename Allocator>
  struct door {};
};

int main() {
  tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device, misled> pool;
}
