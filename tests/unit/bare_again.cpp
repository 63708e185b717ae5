// SPDX-License-Identifier: Apache-2.0
// The other source of unit/bare.cpp, of another standard.
#include <every_header.hpp>

#include "layout.hpp"

std::size_t layout_by_the_other_standard() { return layout(); }
bool other_standard_frees(
    tessera::concurrent::locked<
        tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device>>& pool,
    void* p) {
  pool.deallocate(p);
  return pool.audit() == nullptr && pool.current_usage().allocated == 0;
}
