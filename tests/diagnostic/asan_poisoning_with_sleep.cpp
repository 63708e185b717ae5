// expect first: asan_poisoning: sleep_mode copies whole chunks, with the poisoned bytes in them, so an allocator has one of the two
// SPDX-License-Identifier: Apache-2.0
#include <tessera/debug/asan_poisoning.hpp>
#include <tessera/extension/sleep_mode.hpp>
#include <tessera/provider/host_pinned.hpp>
#include <tessera/tessera.hpp>

int main() {
  tessera::caching_allocator<tessera::recipe::stitched, tessera::provider::host_pinned,
                             tessera::debug::asan_poisoning, tessera::extension::sleep_mode>
      pool;
}
