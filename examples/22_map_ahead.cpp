// SPDX-License-Identifier: Apache-2.0
// An inference server whose cache of keys and values grows. A thread maps its pages before the requests need them.
#include <cstdio>
#include <thread>
#include <vector>

#include <tessera/concurrent/locked.hpp>
#include <tessera/concurrent/mapping_ahead.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

using namespace tessera::literals;

using recipe = tessera::recipe::pytorch<"expandable_segments:True">;
using pool =
    tessera::concurrent::locked<tessera::caching_allocator<recipe, tessera::provider::simulated_device>>;

int main() {
  tessera::concurrent::mapping_ahead<pool> allocator({.low = 64_MiB, .high = 256_MiB});
  while (allocator.current_usage().cached < 256_MiB) std::this_thread::yield();  // until the server is ready
  const auto mapped = [&] {
    return allocator.visit_provider([](auto& device) { return device.calls().map; });
  };

  const std::size_t before = mapped();
  std::vector<void*> pages;
  for (int token = 0; token < 9; ++token) pages.push_back(allocator.allocate(20_MiB));
  std::printf("9 pages of keys and values: %zu map calls\n", mapped() - before);  // 76 MiB are left

  pages.push_back(allocator.allocate(20_MiB));  // now 56 MiB are left, so the thread maps again
  while (allocator.current_usage().cached < 256_MiB) std::this_thread::yield();
  std::printf("later: %zu MiB are mapped and free\n", allocator.current_usage().cached >> 20);
  for (void* const page : pages) allocator.deallocate(page);
  return allocator.audit() == nullptr ? 0 : 1;
}
