// expect: would_fit does not know in which part of a device
// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include <tessera/concurrent/locked.hpp>
#include <tessera/observe/would_fit.hpp>
#include <tessera/provider/limiting.hpp>
#include <tessera/provider/memory_domains.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

int main() {
  using banks =
      tessera::provider::memory_domains<tessera::provider::simulated_device, tessera::provider::spill_banks>;
  using limited = tessera::provider::limiting<banks>;
  tessera::concurrent::locked<tessera::caching_allocator<tessera::recipe::pytorch<>, limited>> memory(
      limited(banks(std::vector<banks::bank>(1)), 1024));
  (void)tessera::observe::would_fit(memory, {{1024}});
}
