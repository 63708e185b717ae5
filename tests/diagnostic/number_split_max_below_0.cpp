// expect first: a number of bytes is whole and not below 0
// SPDX-License-Identifier: Apache-2.0
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

using namespace tessera::literals;
using wrong = tessera::recipe::with<tessera::recipe::pytorch<>, tessera::policy::split_below<-1>>;

int main() { tessera::caching_allocator<wrong, tessera::provider::simulated_device> pool; }
