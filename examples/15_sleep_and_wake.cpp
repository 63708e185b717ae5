// SPDX-License-Identifier: Apache-2.0
// Sleep and wake: inference gives its memory to training for a while, and keeps its addresses.
#include <tessera/private_pool.hpp>
#include <tessera/provider/host_pinned.hpp>
#include <tessera/tessera.hpp>

#include <cstdio>
#include <cstring>

using namespace tessera::literals;

namespace {

// Only recipes that map memory into ranges can sleep: an address outlives the memory behind it.
using allocator_type = tessera::caching_allocator<tessera::stitched, tessera::host_pinned>;

char* allocate_in(tessera::private_pool<allocator_type>& pool, std::size_t bytes) {
  const tessera::pool_scope scope(pool);
  return static_cast<char*>(pool.allocator().allocate(bytes));
}

/// Prints what a call did, or why it changed nothing.
bool report(const char* call, const tessera::sleep_result& result) {
  if (result) {
    std::printf("%s: %zu MiB\n", call, result.bytes >> 20);
  } else {
    std::printf("%s: %s; %zu MiB are missing\n", call, result.why, result.missing >> 20);
  }
  return static_cast<bool>(result);
}

}  // namespace

int main() {
  allocator_type allocator{
      tessera::host_pinned({.capacity = 100_MiB, .pin = tessera::host_pinned::pinning::where_allowed})};
  tessera::private_pool weights(allocator);
  tessera::private_pool key_value_cache(allocator);
  char* const layer = allocate_in(weights, 40_MiB);
  char* const cache = allocate_in(key_value_cache, 30_MiB);
  std::memset(layer, 'w', 40_MiB);

  // The weights are saved. The cache is discarded, because it is filled again after waking.
  bool works = report("weights sleep", weights.sleep(tessera::sleep_contents::save));
  works = report("cache sleeps", key_value_cache.sleep(tessera::sleep_contents::discard)) && works;

  void* const training = allocator.allocate(80_MiB);
  const bool woke_early = report("weights wake", weights.wake());  // the device is full
  allocator.deallocate(training);
  works = report("all wake", allocator.wake()) && works && !woke_early;

  const bool kept = layer[0] == 'w' && layer[40_MiB - 1] == 'w';
  std::printf("the weights are %s\n", kept ? "as they were" : "lost");
  allocator.deallocate(layer);
  allocator.deallocate(cache);
  return works && kept ? 0 : 1;
}
