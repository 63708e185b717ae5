// expect first: Make a configured for each device instead
// SPDX-License-Identifier: Apache-2.0
#include <tessera/concurrent/per_device.hpp>
#include <tessera/configured.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

using plain = tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device>;

int main() {
  tessera::concurrent::per_device<tessera::configured<tessera::recipe::pytorch_family, plain>> pool({});
}
