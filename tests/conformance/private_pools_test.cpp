// SPDX-License-Identifier: Apache-2.0
// Private pools, over each way to grow. The rules are those of PyTorch 2.6, but for the order of scopes in stitched.
#include <cstddef>
#include <cstdint>
#include <new>
#include <optional>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/concurrent/locked.hpp>
#include <tessera/detail/blocks/introspection.hpp>
#include <tessera/extension/private_pools.hpp>
#include <tessera/observe/explain.hpp>
#include <tessera/observe/inspect.hpp>
#include <tessera/observe/snapshot.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

#include "extensions.hpp"

namespace {

using namespace tessera;

constexpr stream_id one{1}, two{2};

template <typename Recipe>
struct private_pools : testing::Test {
  using allocator = caching_allocator<Recipe, simulated_device, extension::private_pools>;

  void* allocate(std::size_t bytes, stream_id stream = {}) {
    void* const p = on.try_allocate(bytes, stream);
    EXPECT_EQ(on.audit(), nullptr);
    return p;
  }
  /// The private pool that a live block belongs to.
  pool_id owner(const void* p) { return segment_of(on, p).private_pool; }
  std::size_t reserved() { return on.current_usage().reserved; }

  allocator on{simulated_device{simulated_device::options{.capacity = 200_MiB}}};
};
using recipes = testing::Types<pytorch<>, pytorch_family::expandable, stitched, cuda_async>;
TYPED_TEST_SUITE(private_pools, recipes);

TYPED_TEST(private_pools, have_blocks_of_their_own) {
  this->on.deallocate(this->allocate(5_MiB, one));
  extension::private_pool pool(this->on);
  void* inside = nullptr;
  {
    const extension::pool_scope scope(pool, one, extension::scope_kind::capture);
    inside = this->allocate(5_MiB, one);
    EXPECT_EQ(this->owner(inside), pool.id());
    EXPECT_EQ(this->owner(this->allocate(1_KiB, one)), pool.id()) << "of both sizes";
    EXPECT_EQ(this->owner(this->allocate(5_MiB, two)), pool_id{}) << "another stream";
  }
  this->on.deallocate(inside);
  EXPECT_EQ(this->owner(this->allocate(5_MiB, one)), pool_id{}) << "after the scope";
  const extension::pool_scope again(pool, one, extension::scope_kind::capture);
  EXPECT_EQ(this->allocate(5_MiB, one), inside) << "a block freed outside returns to its pool";
}

TYPED_TEST(private_pools, are_chosen_by_the_oldest_scope_as_in_PyTorch_and_by_the_newest_elsewhere) {
  constexpr bool newest_decides = std::is_same_v<TypeParam, stitched>;
  extension::private_pool first(this->on), second(this->on);
  std::optional<extension::pool_scope<typename TestFixture::allocator>> outer(std::in_place, first, one,
                                                                              extension::scope_kind::capture);
  const extension::pool_scope inner(second, extension::scope_kind::capture);
  EXPECT_EQ(this->owner(this->allocate(1_MiB, one)), newest_decides ? second.id() : first.id());
  EXPECT_EQ(this->owner(this->allocate(1_MiB, two)), second.id());
  outer.reset();
  EXPECT_EQ(this->owner(this->allocate(1_MiB, one)), second.id());
}

TYPED_TEST(private_pools, are_chosen_by_a_predicate) {
  extension::private_pool pool(this->on);
  std::uint64_t wanted = 2;
  const auto is_wanted = [](void* number, stream_id stream) noexcept {
    return stream.handle == *static_cast<std::uint64_t*>(number);
  };
  const extension::pool_scope scope(pool, extension::stream_filter(is_wanted, &wanted),
                                    extension::scope_kind::capture);
  EXPECT_EQ(this->owner(this->allocate(1_MiB, one)), pool_id{});
  EXPECT_EQ(this->owner(this->allocate(1_MiB, two)), pool.id());
  wanted = 1;
  EXPECT_EQ(this->owner(this->allocate(1_MiB, one)), pool.id());
}

TYPED_TEST(private_pools, give_no_live_block_to_a_request_of_another_pool) {
  extension::private_pool pool(this->on);
  void* const outside = this->allocate(1_MiB, one);
  void* inside = nullptr;
  {
    const extension::pool_scope scope(pool, one, extension::scope_kind::capture);
    inside = this->allocate(1_MiB, one);
    EXPECT_FALSE(this->on.reuse_in_place(outside, 1_MiB, one));
    EXPECT_TRUE(this->on.reuse_in_place(inside, 1_MiB, one));
  }
  EXPECT_TRUE(this->on.reuse_in_place(outside, 1_MiB, one));
  EXPECT_FALSE(this->on.reuse_in_place(inside, 1_MiB, one));
}

TYPED_TEST(private_pools, keep_their_memory_until_their_release) {
  {
    extension::private_pool pool(this->on);
    {
      const extension::pool_scope scope(pool, extension::scope_kind::capture);
      this->on.deallocate(this->allocate(80_MiB));
    }
    this->on.trim();
    EXPECT_GE(this->reserved(), 80_MiB);
    pools(this->on).trim(pool.id());
    EXPECT_GE(this->reserved(), 80_MiB);
    EXPECT_EQ(this->allocate(180_MiB), nullptr) << "no recovery takes it";
  }
  EXPECT_GE(this->reserved(), 80_MiB) << "a release alone calls no device";
  EXPECT_NE(this->allocate(180_MiB), nullptr) << "recovery takes it now";
}

TYPED_TEST(private_pools, exist_until_they_own_no_memory) {
  const pool_id pool = pools(this->on).create();
  ASSERT_TRUE(pools(this->on).open(pool, extension::scope_kind::capture));
  void* const p = this->allocate(5_MiB);
  EXPECT_FALSE(pools(this->on).release(pool)) << "its scope is open";
  EXPECT_TRUE(pools(this->on).retain(pool));
  EXPECT_EQ(pools(this->on).use_count(pool), 2u);
  EXPECT_TRUE(pools(this->on).release(pool));
  EXPECT_TRUE(pools(this->on).close(pool));
  EXPECT_TRUE(pools(this->on).release(pool));
  EXPECT_FALSE(pools(this->on).release(pool)) << "it has no use";
  EXPECT_FALSE(pools(this->on).retain(pool));
  EXPECT_FALSE(pools(this->on).open(pool, extension::scope_kind::capture));
  this->on.trim();
  EXPECT_TRUE(pools(this->on).has(pool)) << "a block is live";
  this->on.deallocate(p);
  EXPECT_TRUE(pools(this->on).has(pool));
  pools(this->on).trim(pool);
  EXPECT_FALSE(pools(this->on).has(pool));
  EXPECT_EQ(this->reserved(), 0u);
  EXPECT_EQ(this->on.audit(), nullptr);
}

TYPED_TEST(private_pools, are_emptied_alone) {
  void* const outside_pool = this->allocate(30_MiB);
  if constexpr (!TypeParam::growth::backend::moves_memory) this->on.deallocate(outside_pool);
  const std::size_t outside = this->reserved();
  const pool_id pool = pools(this->on).create();
  ASSERT_TRUE(pools(this->on).open(pool, extension::scope_kind::capture));
  this->on.deallocate(this->allocate(30_MiB));
  ASSERT_TRUE(pools(this->on).close(pool));
  ASSERT_TRUE(pools(this->on).release(pool));
  pools(this->on).trim(pool);
  EXPECT_EQ(this->reserved(), outside);
}

TYPED_TEST(private_pools, stop_the_emptying_of_caches_while_a_scope_is_open) {
  this->on.deallocate(this->allocate(80_MiB));
  const std::size_t before = this->reserved();
  extension::private_pool pool(this->on);
  const extension::pool_scope scope(pool, one, extension::scope_kind::capture);
  this->on.trim();
  this->on.trim_without_waiting();
  EXPECT_EQ(this->reserved(), before);
  if constexpr (!TypeParam::growth::backend::moves_memory) {
    EXPECT_EQ(this->allocate(180_MiB, two), nullptr) << "nor does recovery, for any stream";
    EXPECT_EQ(this->on.statistics().num_alloc_retries, 0u);
  }
}

TYPED_TEST(private_pools, are_in_snapshots_and_explanations) {
  extension::private_pool pool(this->on);
  const extension::pool_scope scope(pool, extension::scope_kind::capture);
  this->on.deallocate(this->allocate(80_MiB));
  const snapshot taken = take_snapshot(this->on);
  ASSERT_EQ(taken.segments.size(), 1u);
  EXPECT_EQ(taken.segments[0].pool, (snapshot::pool_id{0, pool.id().number}));
  const oom_report report = explain(this->on, 180_MiB);
  EXPECT_TRUE(report.must_not_wait);
  EXPECT_GE(report.private_bytes, 80_MiB);
  EXPECT_EQ(report.private_idle, report.private_bytes);
  EXPECT_EQ(report.idle, 0u);
}

TYPED_TEST(private_pools, ask_no_events_while_a_scope_is_open) {
  if constexpr (!TypeParam::streams::uses_events) GTEST_SKIP() << "the recipe records no streams";
  void* const before = this->allocate(5_MiB, one);
  void* const other = this->allocate(5_MiB, one);
  ASSERT_TRUE(this->on.record_stream(before, two));
  extension::private_pool pool(this->on);
  {
    const extension::pool_scope scope(pool, one, extension::scope_kind::capture);
    ASSERT_TRUE(this->on.record_stream(other, two));
    const auto asked = this->on.provider().calls();
    this->on.deallocate(before);
    this->on.deallocate(other);
    (void)this->on.process_events();
    (void)this->allocate(5_MiB, two);
    EXPECT_EQ(this->on.provider().calls().record, asked.record);
    EXPECT_EQ(this->on.provider().calls().query, asked.query);
    EXPECT_GE(this->on.current_usage().pending(), 10_MiB);
  }
  this->on.provider().hold_events(true);
  (void)this->on.process_events();
  const std::size_t pending = this->on.current_usage().pending();
  EXPECT_GE(pending, 5_MiB) << "the use recorded before the scope gets an event";
  EXPECT_LT(pending, 10_MiB) << "the use recorded in the scope is dropped";
  EXPECT_EQ(this->on.audit(), nullptr);
  this->on.provider().hold_events(false);
  (void)this->on.process_events();
  EXPECT_EQ(this->on.current_usage().pending(), 0u);
}

// A block with a record from a scope is freed after it: all its streams get events.
TYPED_TEST(private_pools, await_events_of_blocks_freed_after_the_scope) {
  if constexpr (!TypeParam::streams::uses_events) GTEST_SKIP() << "the recipe records no streams";
  void* const p = this->allocate(5_MiB, one);
  extension::private_pool pool(this->on);
  {
    const extension::pool_scope scope(pool, one, extension::scope_kind::capture);
    ASSERT_TRUE(this->on.record_stream(p, two));
  }
  this->on.provider().hold_events(true);
  this->on.deallocate(p);
  (void)this->on.process_events();
  EXPECT_GE(this->on.current_usage().pending(), 5_MiB);
}

TYPED_TEST(private_pools, wait_only_for_their_own_blocks) {
  if constexpr (!TypeParam::streams::uses_events) GTEST_SKIP() << "the recipe records no streams";
  const pool_id pool = pools(this->on).create();
  ASSERT_TRUE(pools(this->on).open(pool, one, extension::scope_kind::capture));
  void* const inside = this->allocate(5_MiB, one);
  void* const outside = this->allocate(5_MiB, two);
  ASSERT_TRUE(pools(this->on).close(pool));
  ASSERT_TRUE(pools(this->on).release(pool));
  for (void* p : {outside, inside}) {
    ASSERT_TRUE(this->on.record_stream(p, stream_id{3}));
    this->on.deallocate(p);
  }
  const auto before = this->on.provider().calls().wait;
  pools(this->on).trim(pool);
  EXPECT_EQ(this->on.provider().calls().wait, before + 1);
  EXPECT_GE(this->on.current_usage().pending(), 5_MiB);
  EXPECT_LT(this->on.current_usage().pending(), 10_MiB);
  EXPECT_FALSE(pools(this->on).has(pool));
  EXPECT_EQ(this->on.audit(), nullptr);
}

// The first page of a range is refused. The range goes with its pool.
TEST(private_pools_in_ranges, give_back_a_range_that_was_reserved_in_vain) {
  caching_allocator<pytorch_family::expandable, simulated_device, extension::private_pools> on{
      simulated_device{simulated_device::options{.capacity = 40_MiB}}};
  void* const all = on.allocate(40_MiB);
  const pool_id pool = pools(on).create();
  ASSERT_TRUE(pools(on).open(pool, extension::scope_kind::capture));
  EXPECT_EQ(on.try_allocate(5_MiB), nullptr);
  ASSERT_TRUE(pools(on).close(pool));
  ASSERT_TRUE(pools(on).release(pool));
  on.trim();
  EXPECT_FALSE(pools(on).has(pool));
  on.deallocate(all);
  on.trim();
  EXPECT_EQ(on.provider().held().reserved, 0u);
}

TEST(private_pool_numbers, name_no_pool_of_another_allocator) {
  caching_allocator<pytorch<>, simulated_device, extension::private_pools> here, there;
  const pool_id pool = pools(here).create();
  EXPECT_FALSE(pools(there).has(pool));
  EXPECT_FALSE(pools(there).open(pool, extension::scope_kind::capture));
  EXPECT_FALSE(pools(there).close(pool));
  EXPECT_FALSE(pools(there).retain(pool));
  EXPECT_FALSE(pools(there).release(pool));
  pools(there).trim(pool);
  EXPECT_NE(pools(there).create(), pool);
}

TEST(private_pool, moves_its_use) {
  caching_allocator<pytorch<>, simulated_device, extension::private_pools> on;
  extension::private_pool first(on);
  const pool_id id = first.id();
  extension::private_pool second(std::move(first));
  EXPECT_EQ(second.id(), id);
  EXPECT_EQ(pools(on).use_count(id), 1u);
  {
    extension::private_pool third(on);
    const pool_id given_up = third.id();
    third = std::move(second);
    EXPECT_EQ(third.id(), id);
    EXPECT_EQ(pools(on).use_count(id), 1u);
    EXPECT_EQ(pools(on).use_count(given_up), 0u) << "nothing keeps the pool that it had";
  }
  EXPECT_EQ(pools(on).use_count(id), 0u);
}

TYPED_TEST(private_pools, may_never_split) {
  extension::private_pool pool(this->on, {.never_splits = true});
  void* first = nullptr;
  {
    const extension::pool_scope scope(pool, extension::scope_kind::capture);
    first = this->allocate(30_MiB);
    this->on.deallocate(first);
    EXPECT_EQ(this->allocate(12_MiB), first);
    EXPECT_NE(this->allocate(12_MiB), nullptr);
  }
  const detail::block* const whole = tessera::detail::introspect(this->on).find_live(first);
  ASSERT_NE(whole, nullptr);
  EXPECT_GE(whole->size, 30_MiB) << "the whole block serves";
  void* const outside = this->allocate(30_MiB);
  this->on.deallocate(outside);
  EXPECT_EQ(this->allocate(12_MiB), outside);
  if constexpr (!std::is_same_v<TypeParam, cuda_async>) {
    EXPECT_LT(tessera::detail::introspect(this->on).find_live(outside)->size, 30_MiB)
        << "the default pools still split";
  }
}

TYPED_TEST(private_pools, may_serve_requests_of_the_default_pools_that_growth_does_not) {
  extension::private_pool pool(this->on, {.serves_on_oom = true});
  void* idle = nullptr;
  {
    const extension::pool_scope scope(pool, extension::scope_kind::capture);
    idle = this->allocate(100_MiB);
    this->on.deallocate(idle);
  }
  void* const rest = this->allocate(90_MiB);
  void* const helped = this->allocate(60_MiB);
  EXPECT_EQ(this->owner(helped), pool.id());
  EXPECT_EQ(this->on.statistics().num_alloc_retries, 0u) << "before anything is released";
  this->on.deallocate(helped);
  this->on.deallocate(rest);
  const extension::pool_scope scope(pool, extension::scope_kind::capture);
  EXPECT_EQ(this->owner(this->allocate(100_MiB)), pool.id()) << "the block has returned";
}

TYPED_TEST(private_pools, of_which_one_is_trimmed_wait_for_a_capture) {
  const pool_id old = pools(this->on).create();
  ASSERT_TRUE(pools(this->on).open(old, one, extension::scope_kind::capture));
  void* const p = this->allocate(30_MiB, one);
  this->on.deallocate(this->allocate(60_MiB, one));
  ASSERT_TRUE(pools(this->on).close(old) && pools(this->on).release(old));
  const std::size_t before = this->reserved();
  extension::private_pool graph(this->on);
  {
    const extension::pool_scope capture(graph, one, extension::scope_kind::capture);
    ASSERT_TRUE(this->on.record_stream(p, two));
    this->on.deallocate(p);
    pools(this->on).trim(old);
    EXPECT_GT(this->on.current_usage().pending(), 0u);
    EXPECT_EQ(this->reserved(), before);
  }
  pools(this->on).trim(old);
  EXPECT_EQ(this->on.current_usage().pending(), 0u);
  EXPECT_EQ(this->reserved(), 0u);
}

TEST(private_pools_of_a_stitched_allocator, do_not_move_memory_during_a_capture) {
  caching_allocator<stitched, simulated_device, extension::private_pools> on{
      simulated_device({.capacity = 100_MiB})};
  on.deallocate(on.try_allocate(80_MiB));
  extension::private_pool graph(on);
  {
    const extension::pool_scope capture(graph, one, extension::scope_kind::capture);
    const std::size_t before = on.provider().calls().unmap;
    EXPECT_EQ(on.try_allocate(60_MiB, one), nullptr);
    EXPECT_NE(on.try_allocate(10_MiB, one), nullptr);
    EXPECT_EQ(on.provider().calls().unmap, before) << "a device that captures must not wait for streams";
  }
  EXPECT_NE(on.try_allocate(60_MiB, one), nullptr);
}

TYPED_TEST(private_pools, that_never_split_reuse_a_block_in_place) {
  extension::private_pool pool(this->on, {.never_splits = true});
  const extension::pool_scope scope(pool, extension::scope_kind::capture);
  this->on.deallocate(this->allocate(30_MiB));
  void* const p = this->allocate(12_MiB);
  EXPECT_TRUE(this->on.reuse_in_place(p, 10_MiB, {}));
  EXPECT_EQ(this->on.audit(), nullptr);
}

/// Memory that counts what it gave, and fails if it is told to.
struct registered {
  simulated_device memory{simulated_device::options{.capacity = 1_GiB}};
  std::vector<std::pair<void*, std::size_t>> given{};
  bool fails = false;

  void* acquire(std::size_t bytes) noexcept {
    void* const p = fails ? nullptr : memory.acquire(bytes);
    if (p != nullptr) given.emplace_back(p, bytes);
    return p;
  }
  bool release(void* p, std::size_t bytes) noexcept {
    return !fails && std::erase(given, std::pair(p, bytes)) == 1 && memory.release(p, bytes);
  }
};
template <typename Allocator>
concept has_sources =
    requires(Allocator& on, registered& from) { pools(on).create(extension::pool_upstream(from)); };
static_assert(has_sources<caching_allocator<pytorch<>, simulated_device, extension::private_pools>>);
static_assert(has_sources<locked<caching_allocator<pytorch<>, simulated_device, extension::private_pools>>>);
static_assert(!has_sources<caching_allocator<stitched, simulated_device, extension::private_pools>>);

template <typename Recipe>
struct pools_with_a_source : testing::Test {};
using recipes_with_segments = testing::Types<pytorch<>, cuda_async, paddle<>>;
TYPED_TEST_SUITE(pools_with_a_source, recipes_with_segments);

TYPED_TEST(pools_with_a_source, take_their_segments_from_it) {
  registered from;
  {
    locked<caching_allocator<TypeParam, simulated_device, extension::private_pools>> on;
    void* kept = nullptr;
    {
      extension::private_pool pool(on, extension::pool_upstream(from));
      const extension::pool_scope scope(pool, one, extension::scope_kind::capture);
      void* const p = on.try_allocate(30_MiB, one);
      ASSERT_EQ(from.given.size(), 1u);
      EXPECT_EQ(p, from.given[0].first);
      on.deallocate(p);
      EXPECT_EQ(on.try_allocate(30_MiB, one), p) << "from the cache";
      kept = p;
      EXPECT_NE(on.try_allocate(30_MiB, two), nullptr);
      EXPECT_EQ(from.given.size(), 1u) << "requests of other streams do not use it";
      EXPECT_EQ(on.current_usage().reserved,
                on.visit_provider([](auto& d) { return d.used(); }) + from.given[0].second);
    }
    on.trim();
    EXPECT_EQ(from.given.size(), 1u) << "a block is live";
    on.deallocate(kept);
    on.trim();
    EXPECT_TRUE(from.given.empty());
    extension::private_pool pool(on, extension::pool_upstream(from));
    const extension::pool_scope scope(pool, extension::scope_kind::capture);
    (void)on.try_allocate(5_MiB);
    EXPECT_EQ(from.given.size(), 1u);
  }
  EXPECT_TRUE(from.given.empty()) << "the destructor gives all back";
}

TYPED_TEST(pools_with_a_source, report_its_failures) {
  registered from;
  caching_allocator<TypeParam, simulated_device, extension::private_pools> on;
  extension::private_pool pool(on, extension::pool_upstream(from));
  from.fails = true;
  {
    const extension::pool_scope scope(pool, extension::scope_kind::capture);
    EXPECT_EQ(on.try_allocate(5_MiB), nullptr);
    from.fails = false;
    on.deallocate(on.try_allocate(5_MiB));
  }
  {
    const extension::private_pool released(std::move(pool));
  }
  from.fails = true;
  on.trim();
  EXPECT_GT(on.current_usage().reserved, 0u) << "the segment stays, because the source did not take it";
  from.fails = false;
  on.trim();
  EXPECT_EQ(on.current_usage().reserved, 0u);
  EXPECT_EQ(on.audit(), nullptr);
}

using pool_of_locked =
    extension::private_pool<locked<caching_allocator<pytorch<>, simulated_device, extension::private_pools>>>;
TEST(private_pool_death, aborts_in_words) {
  caching_allocator<pytorch<>, simulated_device, extension::private_pools> on;
  EXPECT_DEATH(
      {
        std::optional<extension::private_pool<decltype(on)>> pool(std::in_place, on);
        const extension::pool_scope scope(*pool, extension::scope_kind::capture);
        pool.reset();
      },
      "private_pool: destroyed while its scope is open");
  EXPECT_DEATH(
      {
        extension::private_pool pool(on);
        const extension::pool_scope scope(pool, extension::scope_kind::capture);
        const extension::pool_scope again(pool, one, extension::scope_kind::capture);
      },
      "pool_scope: a scope of the pool is open");
}

// Each thread has a pool for its stream, and frees blocks of the others.
TEST(private_pools_threads, of_a_locked_allocator_are_used_side_by_side) {
  locked<caching_allocator<pytorch<>, simulated_device, extension::private_pools>> on;
  std::vector<std::thread> threads;
  for (std::uint64_t number = 1; number <= 4; ++number) {
    threads.emplace_back([&on, number] {
      const stream_id stream{number};
      for (int round = 0; round < 50; ++round) {
        pool_of_locked pool(on);
        std::vector<void*> blocks;
        {
          const extension::pool_scope scope(pool, stream, extension::scope_kind::capture);
          for (std::size_t i = 1; i < 20; ++i) blocks.push_back(on.allocate(i * 100'000, stream));
        }
        for (void* p : blocks) {
          (void)on.record_stream(p, stream_id{number % 4 + 1});
          on.deallocate(p);
        }
        on.trim();
      }
    });
  }
  for (std::thread& t : threads) t.join();
  on.trim();
  EXPECT_EQ(on.current_usage().reserved, 0u);
  EXPECT_EQ(on.audit(), nullptr);
}

TEST(private_pools_names, of_no_private_pool_are_refused) {
  caching_allocator<pytorch<>, simulated_device, extension::private_pools> on;
  auto private_ones = on.get<extension::private_pools>();
  constexpr const char* of_default = "the default pools are not a private pool";
  EXPECT_STREQ(private_ones.retain(default_pools).why, of_default);
  EXPECT_STREQ(private_ones.release(default_pools).why, of_default);
  EXPECT_STREQ(private_ones.open(default_pools, extension::scope_kind::capture).why, of_default);
  EXPECT_STREQ(private_ones.release(pool_id{123456789}).why, "no such pool exists");
  EXPECT_FALSE(private_ones.has(default_pools));
}

}  // namespace
