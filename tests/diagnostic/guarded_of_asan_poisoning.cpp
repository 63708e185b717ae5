// expect first: guarded: it writes patterns behind requests, which asan_poisoning poisons; use one of the two
// SPDX-License-Identifier: Apache-2.0
#include <tessera/debug/asan_poisoning.hpp>
#include <tessera/debug/guarded.hpp>
#include <tessera/provider/host_pinned.hpp>
#include <tessera/tessera.hpp>

using poisoned = tessera::caching_allocator<tessera::recipe::pinned_packed, tessera::provider::host_pinned,
                                            tessera::debug::asan_poisoning>;

int main() { tessera::debug::guarded<poisoned> pool; }
