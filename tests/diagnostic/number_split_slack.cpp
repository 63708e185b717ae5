// expect first: split_below<Max, Slack>: Slack is in bytes
// SPDX-License-Identifier: Apache-2.0
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

using namespace tessera::literals;
using wrong = tessera::recipe::with<tessera::recipe::pytorch<>, tessera::policy::split_below<32_MiB, 20>>;

int main() { tessera::caching_allocator<wrong, tessera::provider::simulated_device> pool; }
