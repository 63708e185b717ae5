// expect: Provider must be an event_provider
// SPDX-License-Identifier: Apache-2.0
#include <tessera/tessera.hpp>

struct plain {
  void* acquire(std::size_t) noexcept { return nullptr; }
  bool release(void*, std::size_t) noexcept { return true; }
  std::size_t capacity() const noexcept { return 0; }
  std::size_t granularity() const noexcept { return 512; }
};

int main() { tessera::caching_allocator<tessera::recipe::pytorch<>, plain> pool; }
