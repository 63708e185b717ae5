// SPDX-License-Identifier: Apache-2.0
// Checks that the provider obeys the laws of providers.
#include <cstdio>

#include <tessera/law/host_visible.hpp>
#include <tessera/law/provider.hpp>

#include "private_memory.hpp"

int main() {
  torch_cpu::private_memory memory;
  for (const tessera::law::verdict& found :
       {tessera::law::provider(memory), tessera::law::host_visible(memory)}) {
    if (!found) {
      std::puts(found.broken);
      return 1;
    }
  }
  std::puts("the provider obeys the laws of providers");
}
