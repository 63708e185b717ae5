// expect: derived_from
// SPDX-License-Identifier: Apache-2.0
#include <tessera/detail/extensions/extension_set.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

struct counting {
  template <typename Core>
  struct state : tessera::detail::extension_defaults {
    state(typename Core::allocator&, const counting&) noexcept {}
    int count = 0;
  };
  template <typename Allocator>
  struct door {
    explicit door(Allocator& allocator) noexcept : in(&allocator) {}
    int add() {
      return in->template change_extension<counting>([](auto& s) { return ++s.count; }, [](auto&) {});
    }
    Allocator* in;
  };
};

int main() {
  tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device, counting> pool;
  return pool.get<counting>().add();
}
