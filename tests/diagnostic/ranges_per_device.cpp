// expect first: Provider must be a virtual_memory_provider for Recipe::growth
// SPDX-License-Identifier: Apache-2.0
#include <tessera/concurrent/per_device.hpp>

#include "no_virtual_memory.hpp"

int main() { tessera::per_device<tessera::pytorch_family::expandable, no_virtual_memory> pool{{}}; }
