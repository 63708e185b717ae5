// expect first: symmetric<Recipe>: its split policy learns from requests
// SPDX-License-Identifier: Apache-2.0
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

struct learning : tessera::policy::split_below<> {
  void note_served(const tessera::served_request&) noexcept {}
  bool operator==(const learning&) const = default;
};
using learns = tessera::recipe::with<tessera::recipe::pytorch<>, learning>;

int main() {
  tessera::caching_allocator<tessera::recipe::symmetric<learns>, tessera::provider::simulated_device> pool;
}
