// expect first: Provider must be a virtual_memory_provider for Recipe::growth
// SPDX-License-Identifier: Apache-2.0
#include <tessera/concurrent/per_stream.hpp>

#include "no_virtual_memory.hpp"

int main() {
  tessera::concurrent::per_stream<
      tessera::caching_allocator<tessera::recipe::pytorch_family::expandable, no_virtual_memory>>
      pool;
}
