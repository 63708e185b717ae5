// expect first: Provider must be a virtual_memory_provider for Recipe::growth
// SPDX-License-Identifier: Apache-2.0
#include "no_virtual_memory.hpp"

int main() { tessera::caching_allocator<tessera::recipe::stitched, no_virtual_memory> pool; }
