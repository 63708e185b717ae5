// SPDX-License-Identifier: Apache-2.0
// A block is never overwritten while a stream still reads it. A recipe that ignores streams breaks this rule,
// so this test can fail.
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>

#include <gtest/gtest.h>

#include <tessera/provider/host_pinned.hpp>
#include <tessera/tessera.hpp>

namespace {

using namespace tessera;

constexpr std::size_t block_bytes = 64_KiB;

/// The number of rounds in which the next owner of a block overwrote it before a side stream had read it.
template <typename Recipe>
int corrupted_rounds(int rounds) {
  host_pinned device{host_pinned::options{.capacity = 64_MiB, .pin = host_pinned::pinning::never}};
  const stream_id side = device.create_stream();
  caching_allocator<Recipe, host_pinned> pool{std::move(device)};
  int corrupted = 0;
  for (int round = 0; round < rounds; ++round) {
    auto* const p = static_cast<unsigned char*>(pool.allocate(block_bytes));
    std::memset(p, 1, block_bytes);
    std::atomic<bool> may_read = false;
    std::atomic<bool> intact = true;
    (void)pool.record_stream(p, side);
    pool.provider().submit(side, [p, &may_read, &intact] {
      while (!may_read) std::this_thread::yield();
      for (std::size_t i = 0; i < block_bytes; ++i) {
        if (p[i] != 1) intact = false;
      }
    });
    pool.deallocate(p);
    // The next owner writes in order with stream 0, which is not ordered with the side stream.
    auto* const q = static_cast<unsigned char*>(pool.allocate(block_bytes));
    pool.provider().submit(stream_id{}, [q] { std::memset(q, 2, block_bytes); });
    pool.provider().synchronize(stream_id{});
    may_read = true;
    pool.provider().synchronize(side);
    corrupted += !intact;
    pool.deallocate(q);
  }
  EXPECT_STREQ(pool.audit(), nullptr);
  return corrupted;
}

TEST(streams, never_see_a_recorded_block_overwritten) {
  EXPECT_EQ(corrupted_rounds<pytorch<>>(200), 0);
  EXPECT_EQ(corrupted_rounds<passthrough>(200), 0);
  EXPECT_EQ(corrupted_rounds<power_of_two>(200), 0);
  EXPECT_EQ(corrupted_rounds<pinned>(200), 0);
  EXPECT_EQ(corrupted_rounds<pinned_packed>(200), 0);
  EXPECT_EQ(corrupted_rounds<torch_npu_family::pinned_expandable>(20), 0);
}

TEST(streams, corrupt_data_if_a_recipe_ignores_them) {
  using careless = with<pytorch<>, reuse_immediately>;
  EXPECT_EQ(corrupted_rounds<careless>(20), 20);
}

}  // namespace
