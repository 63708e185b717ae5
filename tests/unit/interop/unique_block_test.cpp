// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/concurrent/locked.hpp>
#include <tessera/concurrent/per_stream.hpp>
#include <tessera/interop/ownership.hpp>
#include <tessera/provider/adaptor.hpp>
#include <tessera/provider/host_pinned.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

#include "host_pools.hpp"

namespace {

using namespace tessera;
using shape_tests::host_memory;
using torch = caching_allocator<pytorch<>, simulated_device>;
using shared_torch = shared_allocator<locked<caching_allocator<pytorch<>, simulated_device>>>;
using block = unique_block<torch>;

static_assert(!std::is_copy_constructible_v<block> && !std::is_copy_assignable_v<block>);
static_assert(std::is_nothrow_move_constructible_v<block> && std::is_nothrow_move_assignable_v<block>);
static_assert(std::is_nothrow_destructible_v<block> && std::is_nothrow_swappable_v<block>);
static_assert(std::is_nothrow_default_constructible_v<block>);
static_assert(std::is_nothrow_move_constructible_v<unique_block<shared_torch>>);
template <typename A>
concept makes_blocks = requires { make_block(std::declval<A>(), 1); };
static_assert(makes_blocks<torch&> && makes_blocks<shared_torch&> && makes_blocks<shared_torch> &&
              makes_blocks<const shared_torch&>);
static_assert(!makes_blocks<torch>);  // which would be destroyed before its block

TEST(unique_block, gives_its_block_back_when_it_ends) {
  torch pool;
  {
    const unique_block held = make_block(pool, 1000, stream_id{3});
    EXPECT_NE(held.get(), nullptr);
    EXPECT_TRUE(held);
    EXPECT_EQ(held.size(), 1000u);
    EXPECT_EQ(held.stream(), stream_id{3});
    EXPECT_EQ(pool.current_usage().allocated, 1024u);
  }
  EXPECT_EQ(pool.current_usage().allocated, 0u);
}

TEST(unique_block, may_hold_none) {
  torch pool{simulated_device{simulated_device::options{.capacity = 64_MiB}}};
  block none;
  EXPECT_FALSE(none);
  EXPECT_EQ(none.get(), nullptr);
  EXPECT_EQ(none.size(), 0u);
  EXPECT_FALSE(none.record_stream(stream_id{1}));
  EXPECT_EQ(none.release(), nullptr);
  none.reset();
  block of_no_bytes = make_block(pool, 0);
  EXPECT_FALSE(of_no_bytes);
  block too_large(pool, pool.try_allocate(1_GiB), 1_GiB);
  EXPECT_FALSE(too_large);
  EXPECT_EQ(too_large.size(), 0u);
  too_large = block(pool, pool.try_allocate(1000), 1000);
  EXPECT_EQ(too_large.size(), 1000u);
  EXPECT_THROW((void)make_block(pool, 1_GiB), out_of_memory);
  swap(none, too_large);
  EXPECT_TRUE(none);
  EXPECT_FALSE(too_large);
}

TEST(unique_block, moves_and_swaps_with_its_allocator) {
  torch a, b;
  block in_a = make_block(a, 1000), in_b = make_block(b, 5_MiB, stream_id{1});
  void *const at_a = in_a.get(), *const at_b = in_b.get();
  in_a.swap(in_b);
  EXPECT_EQ(in_a.get(), at_b);
  EXPECT_EQ(in_a.size(), 5_MiB);
  EXPECT_EQ(in_a.stream(), stream_id{1});
  EXPECT_EQ(in_b.get(), at_a);
  in_a = std::move(in_b);
  EXPECT_EQ(b.current_usage().allocated, 0u);
  EXPECT_EQ(in_a.get(), at_a);
  EXPECT_FALSE(in_b);
  block& itself = in_a;
  in_a = std::move(itself);
  EXPECT_EQ(in_a.get(), at_a);
  const block moved(std::move(in_a));
  EXPECT_FALSE(in_a);
  in_a.reset();
  EXPECT_EQ(a.current_usage().allocated, 1024u);
}

TEST(unique_block, may_leave_its_block_to_the_caller) {
  torch pool;
  block held = make_block(pool, 1000);
  void* const p = held.release();
  EXPECT_FALSE(held);
  EXPECT_EQ(held.size(), 0u);
  EXPECT_EQ(pool.current_usage().allocated, 1024u);
  const block again(pool, p, 1000);
  EXPECT_EQ(again.get(), p);
}

TEST(unique_block, waits_for_the_streams_it_recorded) {
  torch pool;
  block held = make_block(pool, 1000, stream_id{1});
  EXPECT_TRUE(held.record_stream(stream_id{2}));
  pool.provider().submit(stream_id{2}, 1'000'000);
  held.reset();
  EXPECT_EQ(pool.current_usage().pending(), 1024u);
  pool.trim();
  EXPECT_EQ(pool.current_usage().reserved, 0u);
}

TEST(unique_block, checks_the_size_it_took_over) {
  torch pool;
  void* const p = pool.allocate(1000);
  EXPECT_DEATH(block(pool, p, 999), "not the requested size");
  const block right(pool, p, 1000);
}

TEST(unique_block, keeps_a_shared_allocator) {
  simulated_device device;
  using pool_type = locked<caching_allocator<pytorch<>, provider_ref<simulated_device>>>;
  auto pool = shared_allocator<pool_type>::make(provider_ref(device));
  unique_block held = make_block(pool, 1000);
  unique_block second = make_block(std::move(pool), 1000);
  pool = {};
  held = {};
  EXPECT_EQ(device.used(), 2_MiB);
  second = {};
  EXPECT_EQ(device.used(), 0u);
  const unique_block alone = make_block(shared_allocator<torch>::make(), 1000);
  EXPECT_TRUE(alone);
}

TEST(unique_block_threads, hold_blocks_of_one_allocator) {
  using pool_type = per_stream<caching_allocator<with<pinned_packed, reuse_on_same_stream>, host_pinned>>;
  pool_type pool{host_memory()};
  std::vector<std::thread> running;
  for (std::uint64_t t = 0; t < 3; ++t) {
    running.emplace_back([&pool, t] {
      std::vector<unique_block<pool_type>> held;
      for (std::size_t i = 1; i < 500; ++i) {
        held.push_back(make_block(pool, 8 * i, stream_id{t}));
        static_cast<std::uint64_t*>(held.back().get())[i - 1] = t;
        if (i % 3 == 0) held.erase(held.begin());
      }
      for (const auto& b : held) EXPECT_EQ(static_cast<std::uint64_t*>(b.get())[b.size() / 8 - 1], t);
    });
  }
  for (std::thread& t : running) t.join();
  EXPECT_EQ(pool.current_usage().allocated, 0u);
}

TEST(unique_block_deleter, frees_the_blocks_of_smart_pointers) {
  locked<caching_allocator<pinned_packed, host_pinned>> pool{host_memory()};
  using deleter = unique_block<decltype(pool)>::deleter;
  {
    std::unique_ptr<float[], deleter> row(static_cast<float*>(pool.allocate(4000)), deleter(pool));
    row[999] = 1;
    const std::shared_ptr<void> shared(pool.allocate(100), deleter(pool));
    const std::unique_ptr<const int, deleter> one(static_cast<int*>(pool.allocate(4)), row.get_deleter());
    EXPECT_EQ(pool.statistics().all.allocation.current, 3);
    std::unique_ptr<float[], deleter> none;
    none = std::move(row);
  }
  EXPECT_EQ(pool.current_usage().allocated, 0u);
}

TEST(unique_block, compiles_the_example_of_its_comment) {
  {
    tessera::concurrent::locked<
        tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device>>
        pool;
    tessera::interop::unique_block weights = tessera::interop::make_block(pool, 1000, tessera::stream_id{1});
    (void)weights.record_stream(tessera::stream_id{2});
    std::printf("%zu bytes at %p\n", weights.size(), weights.get());
    EXPECT_EQ(pool.current_usage().allocated, 1024u);
  }
  tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device> pool;
  {
    using deleter = tessera::interop::unique_block<decltype(pool)>::deleter;
    std::unique_ptr<float[], deleter> row(static_cast<float*>(pool.allocate(4000)), deleter(pool));
    EXPECT_EQ(pool.current_usage().allocated, 4096u);
  }
  EXPECT_EQ(pool.current_usage().allocated, 0u);
}

}  // namespace
