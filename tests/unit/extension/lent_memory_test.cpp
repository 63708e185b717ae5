// SPDX-License-Identifier: Apache-2.0
// Memory of private pools that is lent to the default pools, and taken back.
#include <algorithm>
#include <cstddef>
#include <map>
#include <random>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/any_allocator.hpp>
#include <tessera/concurrent/locked.hpp>
#include <tessera/concurrent/per_stream.hpp>
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
using extension::lent_block;

constexpr stream_id one{1}, two{2};

template <typename Recipe>
struct lent_memory : testing::Test {
  using allocator = caching_allocator<Recipe, simulated_device, extension::private_pools>;

  /// The blocks that take_back() reports, by their addresses.
  std::map<void*, lent_block> take_back(pool_id pool) {
    std::map<void*, lent_block> found;
    std::size_t bytes = 0;
    const extension::taken_back all = pools(tested).take_back(pool, [&](const lent_block& b) {
      EXPECT_TRUE(found.emplace(b.address, b).second);
      bytes += b.bytes;
    });
    EXPECT_TRUE(all);
    EXPECT_EQ(all.blocks, found.size());
    EXPECT_EQ(all.bytes, bytes);
    return found;
  }
  pool_id owner(const void* p) { return segment_of(tested, p).private_pool; }

  allocator tested{simulated_device{simulated_device::options{.capacity = 200_MiB}}};
};
using recipes = types_by_day<2, pytorch<>, stitched, pytorch_family::expandable, cuda_async>;
TYPED_TEST_SUITE(lent_memory, recipes);

TYPED_TEST(lent_memory, is_reported_until_it_is_back) {
  auto& on = this->tested;
  extension::private_pool graph(on);
  {
    const extension::pool_scope capture(graph, one, extension::scope_kind::capture);
    on.deallocate(on.allocate(100_MiB, one));
  }
  void* const rest = on.allocate(90_MiB, one);
  EXPECT_EQ(on.try_allocate(40_MiB, one), nullptr) << "it lends nothing yet";
  ASSERT_TRUE(pools(on).lend(graph.id()));
  void* const lent = on.allocate(40_MiB, one);
  ASSERT_EQ(this->owner(lent), graph.id());

  const auto found = this->take_back(graph.id());
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found.begin()->first, lent);
  EXPECT_GE(found.begin()->second.bytes, 40_MiB);
  EXPECT_EQ(found.begin()->second.stream, stream_id(on.policies().streams.reuse_key(one)));
  EXPECT_FALSE(found.begin()->second.is_pending);
  EXPECT_EQ(on.try_allocate(40_MiB, one), nullptr) << "it lends no more";
  on.deallocate(lent);
  EXPECT_TRUE(this->take_back(graph.id()).empty());
  const extension::pool_scope replay(graph, one, extension::scope_kind::capture);
  EXPECT_EQ(this->owner(on.allocate(100_MiB, one)), graph.id());
  on.deallocate(rest);
  EXPECT_EQ(on.audit(), nullptr);
}

TYPED_TEST(lent_memory, that_a_stream_still_uses_is_reported_as_pending) {
  auto& on = this->tested;
  extension::private_pool graph(on, {.serves_on_oom = true});
  {
    const extension::pool_scope capture(graph, one, extension::scope_kind::capture);
    on.deallocate(on.allocate(100_MiB, one));
  }
  (void)on.allocate(90_MiB, one);
  void* const lent = on.allocate(40_MiB, one);
  on.provider().hold_events(true);
  ASSERT_TRUE(on.record_stream(lent, two));
  on.deallocate(lent);
  const auto found = this->take_back(graph.id());
  if (TypeParam::streams::uses_events) {
    ASSERT_EQ(found.size(), 1u);
    EXPECT_TRUE(found.begin()->second.is_pending);
  }
  on.provider().hold_events(false);
  (void)on.process_events();
  EXPECT_TRUE(this->take_back(graph.id()).empty());
}

TYPED_TEST(lent_memory, errors_name_the_pool) {
  auto& on = this->tested;
  EXPECT_STREQ(pools(on).take_back(pool_id{12345}).why, pools(on).retain(pool_id{12345}).why);
  EXPECT_STREQ(pools(on).lend(pool_id{12345}).why, pools(on).retain(pool_id{12345}).why);
  EXPECT_NE(pools(on).lend(default_pools).why, nullptr);
  EXPECT_NE(pools(on).take_back(default_pools).why, nullptr);
  const pool_id unused = pools(on).create();
  {
    const extension::private_pool<std::remove_reference_t<decltype(on)>> other(on);
    ASSERT_TRUE(pools(on).open(unused, one, extension::scope_kind::capture));
    (void)on.allocate(1_MiB, one);
    ASSERT_TRUE(pools(on).close(unused));
  }
  ASSERT_TRUE(pools(on).release(unused));
  EXPECT_STREQ(pools(on).lend(unused).why, "the pool has no use");
  EXPECT_TRUE(pools(on).take_back(unused));
}

/// A random program of requests, frees, and of pools that lend and take back. The model knows the owner of each live block
/// from the request: outside of scopes, a block of a private pool is lent.
TYPED_TEST(lent_memory, is_what_a_model_says_in_random_programs) {
  std::size_t lent_blocks = 0;
  for (unsigned seed = 0; seed < 30; ++seed) {
    std::mt19937 random(seed);
    typename TestFixture::allocator on{simulated_device{simulated_device::options{.capacity = 200_MiB}}};
    struct graph {
      extension::private_pool<typename TestFixture::allocator> pool;
      bool lends = false;
    };
    std::vector<graph> graphs;
    for (int i = 0; i < 3; ++i)
      graphs.push_back({extension::private_pool<typename TestFixture::allocator>(on)});
    struct live {
      pool_id owner;
      bool is_lent;
    };
    std::map<void*, live> blocks;
    const auto allocate = [&](bool in_scope) {
      void* const p = on.try_allocate(1 + random() % 30_MiB, one);
      if (p == nullptr) return;
      const pool_id owner = segment_of(on, p).private_pool;
      const auto lends = [&](const graph& g) { return g.pool.id() == owner && g.lends; };
      EXPECT_TRUE(in_scope || owner == default_pools || std::ranges::any_of(graphs, lends));
      blocks[p] = {owner, !in_scope && owner != default_pools};
    };
    for (int step = 0; step < 300; ++step) {
      graph& g = graphs[random() % graphs.size()];
      switch (random() % 8) {
        case 0: {
          const extension::pool_scope capture(g.pool, one, extension::scope_kind::capture);
          allocate(true);
          break;
        }
        case 1:
          EXPECT_TRUE(pools(on).lend(g.pool.id()));
          g.lends = true;
          break;
        case 2: {
          std::map<void*, bool> expected;
          for (const auto& [p, b] : blocks) {
            if (b.is_lent && b.owner == g.pool.id()) expected[p] = true;
          }
          lent_blocks += expected.size();
          std::map<void*, bool> found;
          EXPECT_TRUE(pools(on).take_back(g.pool.id(), [&](const lent_block& b) {
            EXPECT_FALSE(b.is_pending);
            found[b.address] = true;
          }));
          EXPECT_EQ(found, expected);
          g.lends = false;
          if (random() % 2 == 0) break;
          for (const auto& [p, is_lent] : expected) {
            on.deallocate(p);
            blocks.erase(p);
          }
          EXPECT_EQ(pools(on).take_back(g.pool.id()).blocks, 0u);
          break;
        }
        case 3:
        case 4:
          if (!blocks.empty()) {
            const auto at = std::next(blocks.begin(), static_cast<std::ptrdiff_t>(random() % blocks.size()));
            on.deallocate(at->first);
            blocks.erase(at);
          }
          break;
        default: allocate(false);
      }
      ASSERT_EQ(on.audit(), nullptr);
    }
  }
  EXPECT_GT(lent_blocks, 100u);
}

template <typename Front>
void lends_and_takes_back(Front& on) {
  const pool_id pool = pools(on).create();
  ASSERT_TRUE(pools(on).open(pool, one, extension::scope_kind::plain));
  on.deallocate(on.allocate(100_MiB, one));
  ASSERT_TRUE(pools(on).close(pool));
  (void)on.allocate(90_MiB, one);
  ASSERT_TRUE(pools(on).lend(pool));
  void* const lent = on.allocate(40_MiB, one);
  void* found = nullptr;
  EXPECT_EQ(pools(on).take_back(pool, [&](const lent_block& b) { found = b.address; }).blocks, 1u);
  EXPECT_EQ(found, lent);
  on.deallocate(lent);
  EXPECT_EQ(pools(on).take_back(pool).blocks, 0u);
}
using plain = caching_allocator<pytorch<>, simulated_device, extension::private_pools>;
simulated_device small_device() { return simulated_device{simulated_device::options{.capacity = 200_MiB}}; }

TEST(lent_memory_of_front_ends, is_taken_back) {
  locked<plain> shared(small_device());
  lends_and_takes_back(shared);
  per_stream<plain> arenas(small_device());
  lends_and_takes_back(arenas);
  plain inside(small_device());
  any_allocator any(inside);
  lends_and_takes_back(any);
  caching_allocator<pytorch<>, simulated_device> bare;
  any_allocator without(bare);
  EXPECT_STREQ(pools(without).take_back(pool_id{1}).why, "the allocator has no such extension");
}

TEST(lent_memory_death, of_a_function_that_uses_the_allocator) {
  locked<plain> on(small_device());
  const pool_id pool = pools(on).create({.serves_on_oom = true});
  ASSERT_TRUE(pools(on).open(pool, one, extension::scope_kind::plain));
  on.deallocate(on.allocate(100_MiB, one));
  ASSERT_TRUE(pools(on).close(pool));
  (void)on.allocate(90_MiB, one);
  (void)on.allocate(40_MiB, one);
  EXPECT_DEATH((void)pools(on).take_back(pool, [&](const lent_block& b) { on.deallocate(b.address); }),
               "function of take_back must not use the allocator");
}

TEST(lent_memory_in_ranges, keeps_its_pool_awake_after_lending_ended) {
  caching_allocator<stitched, simulated_device, extension::private_pools, extension::sleep_mode> on(
      small_device());
  extension::private_pool pool(on, {.serves_on_oom = true});
  {
    const extension::pool_scope capture(pool, one, extension::scope_kind::capture);
    on.deallocate(on.allocate(80_MiB, one));
  }
  (void)on.allocate(95_MiB, one);
  void* const lent = on.allocate(40_MiB, one);
  ASSERT_EQ(pools(on).take_back(pool.id()).blocks, 1u);
  EXPECT_FALSE(sleep_mode_of(on).sleep(pool.id(), extension::sleep_contents::discard));
  on.deallocate(lent);
  EXPECT_TRUE(sleep_mode_of(on).sleep(pool.id(), extension::sleep_contents::discard));
}

}  // namespace
