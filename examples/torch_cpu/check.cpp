// SPDX-License-Identifier: Apache-2.0
// Checks that the provider obeys the laws of providers.
#include <cstddef>
#include <cstdio>

#include <tessera/law/provider_laws.hpp>

#include "private_memory.hpp"

int main() {
  torch_cpu::private_memory memory;
  const tessera::law::provider_check_result found =
      tessera::law::provider(memory, {.tries_wrong_releases = true});
  if (!found) {
    std::puts(found.message());
    return 1;
  }
  // The laws try multiples of the granularity only.
  if (memory.acquire(tessera::unlimited) != nullptr ||
      memory.reserve(std::size_t{0} - (4 << 20), 8 << 20) != nullptr) {
    std::puts("a size that overflows is refused");
    return 1;
  }
  std::puts("the provider obeys the laws of providers");
}
