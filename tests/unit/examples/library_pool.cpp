// SPDX-License-Identifier: Apache-2.0
// A C++ library whose pool its users get. It is built twice: as two C++ standards, and with visible and
// hidden names.
#include "library_pool.hpp"

#include <cstdint>

#include "../layout.hpp"

#define FOR_ALL_TO_SEE extern "C" [[gnu::visibility("default")]]

FOR_ALL_TO_SEE long pool_standard() { return __cplusplus; }
FOR_ALL_TO_SEE std::size_t pool_layout() { return layout(); }
FOR_ALL_TO_SEE shared_pool* pool_make(std::size_t capacity) {
  return new shared_pool(tessera::provider::simulated_device({.capacity = capacity}));
}
FOR_ALL_TO_SEE void pool_destroy(shared_pool* pool) { delete pool; }
FOR_ALL_TO_SEE void* pool_allocate(shared_pool* pool, std::size_t bytes) { return pool->allocate(bytes); }
FOR_ALL_TO_SEE void pool_free(shared_pool* pool, void* p) { pool->deallocate(p); }
FOR_ALL_TO_SEE std::uint64_t pool_create_private(shared_pool* pool) {
  return pool->get<tessera::extension::private_pools>().create().number;
}
FOR_ALL_TO_SEE std::size_t pool_caught(shared_pool* pool, std::size_t bytes, allocate_function* by) {
  try {
    by(pool, bytes);
  } catch (const tessera::out_of_memory& error) {
    return error.requested();
  } catch (...) {
  }
  return 0;
}
