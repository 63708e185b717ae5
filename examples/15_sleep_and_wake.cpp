// SPDX-License-Identifier: Apache-2.0
// Sleep and wake: inference gives its memory to training for a while, and keeps its addresses.
#include <tessera/extension/private_pools.hpp>
#include <tessera/extension/sleep_mode.hpp>
#include <tessera/provider/host_file.hpp>
#include <tessera/provider/host_pinned.hpp>
#include <tessera/tessera.hpp>

#include <unistd.h>

#include <cstdio>
#include <cstring>

using namespace tessera::literals;

namespace {

// Only recipes that map memory into ranges can sleep: an address outlives the memory behind it.
using allocator_type =
    tessera::caching_allocator<tessera::recipe::stitched, tessera::provider::host_pinned,
                               tessera::extension::private_pools, tessera::extension::sleep_mode>;

char* allocate_in(tessera::extension::private_pool<allocator_type>& pool, std::size_t bytes) {
  const tessera::extension::pool_scope scope(pool, tessera::extension::scope_kind::plain);
  return static_cast<char*>(pool.allocator().allocate(bytes));
}

/// Prints what a call did, or why it changed nothing.
bool report(const char* call, const tessera::extension::sleep_result& result) {
  if (result) {
    std::printf("%s: %zu MiB\n", call, result.bytes >> 20);
  } else {
    std::printf("%s: %s; %zu MiB are missing\n", call, result.why, result.missing >> 20);
  }
  return static_cast<bool>(result);
}

}  // namespace

int main() {
  const auto where_allowed = tessera::provider::host_pinned::pinning::where_allowed;
  tessera::provider::host_pinned pinned({.pin = where_allowed});
  char path[64];
  std::snprintf(path, sizeof path, "/var/tmp/tessera_example_%d", ::getpid());
  tessera::provider::host_file file(path);
  allocator_type allocator{tessera::provider::host_pinned({.capacity = 100_MiB, .pin = where_allowed})};
  tessera::extension::private_pool weights(allocator);
  tessera::extension::private_pool key_value_cache(allocator);
  char* const layer = allocate_in(weights, 40_MiB);
  char* const cache = allocate_in(key_value_cache, 30_MiB);
  std::memset(layer, 'w', 40_MiB);

  // The weights are saved. The cache is discarded, because it is filled again after waking.
  using contents = tessera::extension::sleep_contents;
  auto mode = allocator.get<tessera::extension::sleep_mode>();
  bool works = report("weights sleep", mode.sleep(weights.id(), contents::save));
  works = report("cache sleeps", mode.sleep(key_value_cache.id(), contents::discard)) && works;

  void* const training = allocator.allocate(80_MiB);
  const bool woke_early = report("weights wake", mode.wake(weights.id()));  // the device is full
  allocator.deallocate(training);
  works = report("all wake", mode.wake()) && works && !woke_early;

  // The program may choose where contents are kept, for each call.
  works = report("weights sleep in pinned memory", mode.sleep(weights.id(), pinned)) && works;
  works = report("cache sleeps in a file", mode.sleep(key_value_cache.id(), file)) && works;
  works = report("all wake", mode.wake()) && works;

  const bool kept = layer[0] == 'w' && layer[40_MiB - 1] == 'w';
  std::printf("the weights are %s\n", kept ? "as they were" : "lost");
  allocator.deallocate(layer);
  allocator.deallocate(cache);
  return works && kept ? 0 : 1;
}
