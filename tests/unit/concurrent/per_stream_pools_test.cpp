// SPDX-License-Identifier: Apache-2.0
// Private pools over the arenas of per_stream.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/allocator_adaptor.hpp>
#include <tessera/concurrent/per_stream.hpp>
#include <tessera/concurrent/waiting.hpp>
#include <tessera/configured.hpp>
#include <tessera/extension/private_pools.hpp>
#include <tessera/extension/sleep_mode.hpp>
#include <tessera/observe/inspect.hpp>
#include <tessera/observe/snapshot.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

#include "../../by_day.hpp"
#include "extensions.hpp"

namespace {

using namespace tessera;

constexpr stream_id one{1}, two{2}, three{3};

using pools_and_sleep = caching_allocator<pytorch_family::expandable, simulated_device,
                                          extension::private_pools, extension::sleep_mode>;
static_assert(per_stream<pools_and_sleep>::has<extension::private_pools>);
static_assert(waiting<per_stream<pools_and_sleep>>::has<extension::private_pools>);
static_assert(!per_stream<pools_and_sleep>::has<extension::sleep_mode>);

template <typename Recipe>
struct pools_of_arenas : testing::Test {
  using allocator = per_stream<
      caching_allocator<Recipe, simulated_device, extension::private_pools, extension::sleep_mode>>;

  /// The private pool that a live block belongs to.
  pool_id owner(const void* p) { return segment_of(on, p).private_pool; }
  pool_id owner_of_new(stream_id stream) { return owner(on.allocate(1_MiB, stream)); }

  allocator on{simulated_device{simulated_device::options{.capacity = 200_MiB}}};
};
using recipes = types_by_day<2, pytorch<>, stitched, pytorch_family::expandable, cuda_async>;
TYPED_TEST_SUITE(pools_of_arenas, recipes);

TYPED_TEST(pools_of_arenas, serve_several_streams_under_one_name) {
  (void)this->on.allocate(1_MiB, one);
  (void)this->on.allocate(1_MiB, three);
  const extension::private_pool pool(this->on);
  std::uint64_t excluded = 3;
  const auto is_wanted = [](void* number, stream_id stream) noexcept {
    return stream.handle != *static_cast<std::uint64_t*>(number);
  };
  void* inside = nullptr;
  {
    const extension::pool_scope scope(pool, extension::stream_filter(is_wanted, &excluded),
                                      extension::scope_kind::capture);
    EXPECT_TRUE(pools(this->on).is_capturing());
    inside = this->on.allocate(5_MiB, one);
    EXPECT_EQ(this->owner(inside), pool.id());
    EXPECT_EQ(this->owner_of_new(two), pool.id()) << "an arena that is new";
    EXPECT_EQ(this->owner_of_new(three), pool_id{});
  }
  EXPECT_FALSE(pools(this->on).is_capturing());
  EXPECT_EQ(this->owner_of_new(one), pool_id{});
  EXPECT_EQ(this->owner_of_new(two), pool_id{});
  this->on.deallocate(inside);
  const extension::pool_scope again(pool, one, extension::scope_kind::capture);
  EXPECT_EQ(this->on.allocate(5_MiB, one), inside) << "a block freed outside returns to its pool";
  EXPECT_EQ(this->on.audit(), nullptr);
}

// The scopes were opened before the arenas existed, and not in the order of the pools.
TYPED_TEST(pools_of_arenas, are_copied_to_new_arenas) {
  const extension::private_pool first(this->on), second(this->on);
  EXPECT_TRUE(pools(this->on).retain(first.id()));
  std::optional<extension::pool_scope<typename TestFixture::allocator>> older(std::in_place, second, two,
                                                                              extension::scope_kind::capture);
  {
    const extension::pool_scope newer(first, extension::scope_kind::capture);
    const pool_id decides = std::is_same_v<TypeParam, stitched> ? first.id() : second.id();
    EXPECT_EQ(this->owner_of_new(two), decides) << "the oldest scope as in PyTorch, else the newest";
    EXPECT_EQ(this->owner_of_new(three), first.id());
    EXPECT_EQ(pools(this->on).use_count(first.id()), 2u);
    older.reset();
    EXPECT_EQ(this->owner_of_new(two), first.id());
  }
  for (int uses = 2; uses > 1; --uses) EXPECT_TRUE(pools(this->on).release(first.id()));
  EXPECT_EQ(pools(this->on).use_count(first.id()), 1u);
  EXPECT_EQ(this->on.audit(), nullptr);
}

TYPED_TEST(pools_of_arenas, exist_until_no_arena_has_their_memory) {
  const pool_id pool = pools(this->on).create();
  ASSERT_NE(pool, pool_id{});
  ASSERT_TRUE(pools(this->on).open(pool, extension::scope_kind::capture));
  EXPECT_FALSE(pools(this->on).open(pool, extension::scope_kind::capture)) << "its scope is open";
  EXPECT_FALSE(pools(this->on).release(pool));
  void* const p = this->on.allocate(5_MiB, one);
  void* const q = this->on.allocate(5_MiB, two);
  EXPECT_TRUE(pools(this->on).close(pool));
  EXPECT_FALSE(pools(this->on).close(pool));
  this->on.deallocate(p);
  this->on.trim();
  EXPECT_GE(this->on.current_usage().cached, 5_MiB) << "the pool is in use";
  EXPECT_TRUE(pools(this->on).release(pool));
  EXPECT_FALSE(pools(this->on).release(pool)) << "it has no use";
  EXPECT_FALSE(pools(this->on).retain(pool));
  EXPECT_FALSE(pools(this->on).open(pool, extension::scope_kind::capture));
  this->on.trim();
  EXPECT_TRUE(pools(this->on).has(pool)) << "a block of another arena is live";
  EXPECT_EQ(this->owner_of_new(three), pool_id{}) << "a new arena does not get it";
  this->on.deallocate(q);
  pools(this->on).trim(pool);
  EXPECT_FALSE(pools(this->on).has(pool));
  EXPECT_EQ(this->on.audit(), nullptr);
}

TYPED_TEST(pools_of_arenas, are_one_pool_in_snapshots) {
  const extension::private_pool pool(this->on);
  const extension::pool_scope scope(pool, extension::scope_kind::capture);
  (void)this->on.allocate(5_MiB, one);
  (void)this->on.allocate(5_MiB, two);
  const snapshot taken = take_snapshot(this->on);
  ASSERT_EQ(taken.segments.size(), 2u);
  for (const auto& segment : taken.segments)
    EXPECT_EQ(segment.pool, (snapshot::pool_id{0, pool.id().number}));
}

TYPED_TEST(pools_of_arenas, stop_the_emptying_of_caches_in_all_arenas) {
  this->on.deallocate(this->on.allocate(80_MiB, one));
  const std::size_t before = this->on.current_usage().reserved;
  const extension::private_pool pool(this->on);
  const extension::pool_scope scope(pool, one, extension::scope_kind::capture);
  this->on.trim();
  EXPECT_EQ(this->on.current_usage().reserved, before);
  EXPECT_EQ(this->on.try_allocate(180_MiB, two), nullptr) << "another arena does not take it, either";
}

TEST(pools_of_arenas_queue, get_back_blocks_that_other_threads_free) {
  per_stream<caching_allocator<pytorch<>, simulated_device, extension::private_pools, extension::sleep_mode>>
      on;
  const extension::private_pool pool(on);
  const extension::pool_scope scope(pool, one, extension::scope_kind::capture);
  void* const p = on.allocate(5_MiB, one);
  std::thread([&] { on.deallocate(p); }).join();
  EXPECT_EQ(on.allocate(5_MiB, one), p);
}

TEST(pools_of_arenas_names, are_unknown_to_other_allocators) {
  per_stream<caching_allocator<pytorch<>, simulated_device, extension::private_pools, extension::sleep_mode>>
      here, there;
  EXPECT_FALSE(pools(there).retain(pool_id{})) << "without arenas";
  const pool_id pool = pools(here).create();
  EXPECT_FALSE(pools(there).retain(pool));
  (void)there.allocate(1, one);
  EXPECT_FALSE(pools(there).has(pool));
  EXPECT_FALSE(pools(there).retain(pool));
  EXPECT_FALSE(pools(there).release(pool));
  EXPECT_FALSE(pools(there).open(pool, extension::scope_kind::capture));
  EXPECT_FALSE(pools(there).close(pool));
  EXPECT_EQ(pools(there).use_count(pool), 0u);
  pools(there).trim(pool);
  EXPECT_NE(pools(there).create(), pool);
}

// A part of the pool sleeps, so its scope begins in no arena.
TEST(pools_of_arenas_sleep, begin_everywhere_or_nowhere) {
  per_stream<caching_allocator<pytorch_family::expandable, simulated_device, extension::private_pools,
                               extension::sleep_mode>>
      on;
  for (std::uint64_t stream = 0; stream < 4; ++stream) (void)on.allocate(1_MiB, stream_id{stream});
  const extension::private_pool pool(on);
  on.visit_arenas(three, [&](auto& in, bool is_own) {
    if (is_own) {
      EXPECT_TRUE(sleep_mode_of(in).sleep(pool.id(), extension::sleep_contents::discard));
    }
    EXPECT_EQ(sleep_mode_of(in).is_asleep(pool.id()), is_own);
  });
  EXPECT_FALSE(pools(on).open(pool.id(), extension::scope_kind::capture));
  EXPECT_FALSE(pools(on).is_capturing());
  on.visit_arenas(three, [&](auto& in, bool is_own) {
    if (is_own) {
      EXPECT_TRUE(sleep_mode_of(in).wake(pool.id()));
    }
    EXPECT_FALSE(sleep_mode_of(in).is_asleep(pool.id()));
  });
  EXPECT_TRUE(pools(on).open(pool.id(), extension::scope_kind::capture));
  EXPECT_TRUE(pools(on).close(pool.id()));
}

TEST(pools_of_arenas_settings, are_in_an_allocator_that_settings_choose) {
  configured<torch_npu_family, per_stream<caching_allocator<pytorch<>, simulated_device,
                                                            extension::private_pools, extension::sleep_mode>>>
      on(torch_npu_family::settings{});
  const extension::private_pool pool(on);
  const extension::pool_scope scope(pool, extension::scope_kind::capture);
  EXPECT_EQ(segment_of(on, on.allocate(1000, two)).private_pool, pool.id());
}

// Threads create pools and arenas, and use their own pools, at the same time.
TEST(pools_of_arenas_threads, are_used_side_by_side) {
  per_stream<caching_allocator<pytorch<>, simulated_device, extension::private_pools, extension::sleep_mode>>
      on;
  std::vector<std::thread> threads;
  std::atomic<std::uint64_t> streams{1};
  for (int number = 0; number < 4; ++number) {
    threads.emplace_back([&] {
      for (int round = 0; round < 20; ++round) {
        const stream_id mine{streams++};
        const extension::private_pool pool(on);
        std::vector<void*> blocks;
        {
          const extension::pool_scope scope(pool, mine, extension::scope_kind::capture);
          for (std::size_t i = 1; i < 20; ++i) blocks.push_back(on.allocate(i * 100'000, mine));
          for (void* p : blocks) ASSERT_EQ(segment_of(on, p).private_pool, pool.id());
        }
        for (void* p : blocks) {
          (void)on.record_stream(p, stream_id{round % 2 == 0 ? 1u : 2u});
          on.deallocate(p);
        }
        on.trim();
      }
    });
  }
  for (std::thread& t : threads) t.join();
  on.trim();
  EXPECT_GT(on.arena_count(), 40u);
  EXPECT_EQ(on.current_usage().reserved, 0u);
  EXPECT_EQ(on.audit(), nullptr);
}

}  // namespace
