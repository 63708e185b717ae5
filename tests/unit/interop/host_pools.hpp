// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/provider/host_pinned.hpp>
#include <tessera/tessera.hpp>

/// Allocators of host memory, for tests that construct objects in it.
namespace shape_tests {

/// Host memory that is page-locked only if the machine allows it.
inline tessera::provider::host_pinned host_memory(std::size_t capacity = tessera::operator""_MiB(64)) {
  return tessera::provider::host_pinned{tessera::provider::host_pinned::options{
      .capacity = capacity, .pin = tessera::provider::host_pinned::pinning::never}};
}

/// Blocks of any multiple of 64 bytes, so that neighbours have no larger alignment.
using packed_tightly =
    tessera::recipe::with<tessera::recipe::pinned_packed, tessera::policy::round_to_multiple<64>,
                          tessera::policy::split_if_remainder_at_least<64>>;

inline bool is_aligned(const void* p, std::size_t to) {
  return reinterpret_cast<std::uintptr_t>(p) % to == 0;
}

/// Three threads call use(pool, stream), each on its own stream. No block may remain.
template <typename Pool, typename F>
void serve_threads(F use) {
  Pool pool{host_memory()};
  std::vector<std::thread> running;
  for (std::uint64_t t = 0; t < 3; ++t)
    running.emplace_back([&pool, use, t] { use(pool, tessera::stream_id{t}); });
  for (std::thread& t : running) t.join();
  EXPECT_EQ(pool.current_usage().allocated, 0u);
}

}  // namespace shape_tests
