// SPDX-License-Identifier: Apache-2.0
// Checkpoints of private pools, over each way to grow. Each rule is one of PyTorch 2.6.
#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/concurrent/locked.hpp>
#include <tessera/configured.hpp>
#include <tessera/debug/guarded.hpp>
#include <tessera/extension/checkpoints.hpp>
#include <tessera/extension/observer.hpp>
#include <tessera/extension/private_pools.hpp>
#include <tessera/extension/sleep_mode.hpp>
#include <tessera/observe/history.hpp>
#include <tessera/observe/inspect.hpp>
#include <tessera/provider/host_pinned.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

#include "extensions.hpp"

namespace {

using namespace tessera;
using state = block_view::state;
using action = allocator_event::action;
using addresses = std::set<void*>;

constexpr stream_id one{1}, two{2};
constexpr std::uint64_t second = 1'000'000'000;

/// A block, as for_each_block shows it, without its requested bytes.
struct seen {
  std::uintptr_t address;
  std::size_t bytes;
  state is;
  stream_id stream;
  auto operator<=>(const seen&) const = default;
};
/// The blocks of a pool, in the order of addresses.
template <typename Allocator>
std::vector<seen> blocks_of(Allocator& on, pool_id pool) {
  std::vector<seen> result;
  for_each_block(on, [&](const segment_view& s, const block_view& b) {
    if (s.private_pool == pool) result.push_back({b.address, b.bytes, b.is, b.stream});
  });
  std::ranges::sort(result);
  return result;
}
template <typename Allocator>
std::size_t bytes_of(Allocator& on, pool_id pool) {
  std::size_t bytes = 0;
  for (const seen& b : blocks_of(on, pool)) bytes += b.bytes;
  return bytes;
}
[[nodiscard]] addresses in(const auto& list) { return {list.begin(), list.end()}; }

/// Every number that a failed call must leave as it was.
template <typename Allocator>
auto numbers_of(Allocator& on) {
  std::vector<std::int64_t> numbers;
  const auto add = [&numbers](const counter& c) {
    numbers.insert(numbers.end(), {c.current, c.peak, c.allocated, c.freed});
  };
  const auto now = on.statistics();
  for (const auto& c : detail::pool_counters) add(now.all.*c.of);
  add(now.oversize_allocations);
  numbers.push_back(static_cast<std::int64_t>(on.current_usage().pending()));
  return numbers;
}

template <typename Recipe>
struct checkpoints : testing::Test {
  using allocator = caching_allocator<Recipe, simulated_device, extension::private_pools,
                                      extension::checkpoints, extension::sleep_mode>;
  using pool_type = extension::private_pool<allocator>;

  void* allocate(const pool_type& pool, std::size_t bytes, stream_id stream = one) {
    const extension::pool_scope scope(pool, extension::scope_kind::capture);
    void* const p = device_memory.try_allocate(bytes, stream);
    EXPECT_EQ(device_memory.audit(), nullptr);
    return p;
  }
  void free(void* p) {
    device_memory.deallocate(p);
    EXPECT_EQ(device_memory.audit(), nullptr);
  }
  extension::pool_checkpoint checkpoint(pool_type& pool) {
    extension::pool_checkpoint made = checkpoints_of(pool).record();
    EXPECT_TRUE(made) << made.why();
    EXPECT_EQ(made.pool(), pool.id());
    EXPECT_EQ(device_memory.audit(), nullptr);
    return made;
  }
  extension::restore_result restore(pool_type& pool, const extension::pool_checkpoint& from) {
    extension::restore_result result = checkpoints_of(pool).restore(from);
    EXPECT_TRUE(result) << result.why;
    EXPECT_EQ(device_memory.audit(), nullptr);
    return result;
  }
  /// Restores in vain, and checks that nothing changes.
  std::string refuse(pool_type& pool, const extension::pool_checkpoint& from) {
    const auto blocks = blocks_of(device_memory, pool.id());
    const auto numbers = numbers_of(device_memory);
    const extension::restore_result result = checkpoints_of(pool).restore(from);
    EXPECT_FALSE(result);
    EXPECT_TRUE(result.freed.empty() && result.allocated.empty());
    EXPECT_EQ(blocks_of(device_memory, pool.id()), blocks);
    EXPECT_EQ(numbers_of(device_memory), numbers);
    EXPECT_EQ(device_memory.audit(), nullptr);
    return result.why != nullptr ? result.why : "";
  }
  [[nodiscard]] std::size_t reserved() { return device_memory.current_usage().reserved; }

  allocator device_memory{simulated_device{simulated_device::options{.capacity = 400_MiB}}};
};
using small_steps = with<pytorch_family::expandable, grow_by_mapping<2_MiB, 2_MiB>>;
using recipes = testing::Types<pytorch<>, pytorch<"max_split_size_mb:30">, pytorch_2_14<>,
                               pytorch_family::expandable, small_steps, stitched, cuda_async,
                               with<paddle_family::auto_growth, pool_small_and_large<1_MiB>>, pinned,
                               pytorch_2_14_family::pinned>;
TYPED_TEST_SUITE(checkpoints, recipes);

TYPED_TEST(checkpoints, bring_the_blocks_of_a_pool_back) {
  auto& on = this->device_memory;
  extension::private_pool pool(on);
  void* const outside = on.allocate(3_MiB, one);
  void* const kept = this->allocate(pool, 5_MiB);
  void* const gap = this->allocate(pool, 3_MiB);
  void* const small = this->allocate(pool, 1000);
  void* const last = this->allocate(pool, 6_MiB, two);
  this->free(gap);
  const auto before = blocks_of(on, pool.id());
  const extension::pool_checkpoint made = this->checkpoint(pool);
  EXPECT_EQ(blocks_of(on, pool.id()), before) << "a checkpoint changes nothing";

  this->free(kept);
  this->free(last);
  void* const later = this->allocate(pool, 2_MiB);
  const addresses live{small, later};
  const extension::restore_result result = this->restore(pool, made);
  EXPECT_EQ(in(result.freed), live);
  EXPECT_EQ(in(result.allocated), (addresses{kept, small, last}));
  EXPECT_EQ(result.freed.size(), 2u);
  EXPECT_EQ(result.allocated.size(), 3u);
  std::vector<seen> after = blocks_of(on, pool.id());
  std::erase_if(after, [&](const seen& b) { return !std::ranges::binary_search(before, b); });
  EXPECT_EQ(after, before) << "whatever else the pool has";
  EXPECT_NE(live_block_at(on, outside).bytes, 0u);

  EXPECT_EQ(in(this->restore(pool, made).freed), (addresses{kept, small, last})) << "as often as wanted";
  for (void* p : {kept, small, last, outside}) this->free(p);
}

TYPED_TEST(checkpoints, let_the_same_requests_get_the_same_addresses) {
  extension::private_pool pool(this->device_memory);
  std::vector<void*> held;
  for (const std::size_t bytes : {9_MiB, 2_MiB, 3_MiB, 7_MiB, 2_MiB, 100_KiB, 3_MiB, 4_MiB})
    held.push_back(this->allocate(pool, bytes));
  for (const std::size_t i : {0u, 6u, 2u, 4u, 5u}) this->free(held[i]);
  const extension::pool_checkpoint made = this->checkpoint(pool);
  const std::size_t reserved = this->reserved();
  const auto replay = [&] {
    std::vector<void*> got;
    for (const std::size_t bytes : {2_MiB, 3_MiB, 1_MiB + 1, 80_KiB, 2_MiB, 8_MiB})
      got.push_back(this->allocate(pool, bytes));
    this->free(got[1]);
    got.push_back(this->allocate(pool, 3_MiB));
    return got;
  };
  const std::vector<void*> first = replay();
  const bool grew = this->reserved() != reserved;
  for (int i = 0; i < 3; ++i) {
    const extension::restore_result result = this->restore(pool, made);
    EXPECT_EQ(result.allocated.size(), 3u);
    const std::vector<void*> again = replay();
    if (!grew) {
      EXPECT_EQ(again, first);
    }
    EXPECT_EQ(addresses(again.begin(), again.end()).size(), again.size() - (again[1] == again.back()));
  }
}

TYPED_TEST(checkpoints, keep_segments_acquired_later_as_free_memory) {
  extension::private_pool pool(this->device_memory);
  void* const early = this->allocate(pool, 5_MiB);
  const extension::pool_checkpoint made = this->checkpoint(pool);
  void* const late = this->allocate(pool, 120_MiB);
  const std::size_t reserved = this->reserved();
  const extension::restore_result result = this->restore(pool, made);
  EXPECT_EQ(in(result.freed), (addresses{early, late}));
  EXPECT_EQ(in(result.allocated), (addresses{early}));
  EXPECT_EQ(this->reserved(), reserved);
  const std::size_t live = this->device_memory.current_usage().allocated;
  EXPECT_EQ(this->allocate(pool, 120_MiB), late);
  EXPECT_EQ(this->reserved(), reserved) << "no memory was acquired";
  EXPECT_GE(this->device_memory.current_usage().allocated, live + 120_MiB);
}

TYPED_TEST(checkpoints, of_an_empty_pool_free_everything) {
  extension::private_pool pool(this->device_memory);
  const extension::pool_checkpoint made = this->checkpoint(pool);
  void* const p = this->allocate(pool, 5_MiB);
  void* const q = this->allocate(pool, 1_KiB, two);
  const extension::restore_result result = this->restore(pool, made);
  EXPECT_EQ(in(result.freed), (addresses{p, q}));
  EXPECT_TRUE(result.allocated.empty());
  EXPECT_EQ(this->device_memory.current_usage().allocated, 0u);
  EXPECT_FALSE(this->device_memory.try_deallocate(p));
}

TYPED_TEST(checkpoints, leave_other_pools_alone) {
  auto& on = this->device_memory;
  extension::private_pool pool(on), other(on);
  void* const p = this->allocate(pool, 5_MiB);
  void* const q = this->allocate(other, 5_MiB);
  const extension::pool_checkpoint made = this->checkpoint(pool);
  void* const outside = on.allocate(5_MiB);
  const auto blocks = blocks_of(on, other.id());
  const auto defaults = blocks_of(on, {});
  this->free(p);
  (void)this->restore(pool, made);
  EXPECT_EQ(blocks_of(on, other.id()), blocks);
  EXPECT_EQ(blocks_of(on, {}), defaults);
  for (void* each : {p, q, outside}) this->free(each);
}

TYPED_TEST(checkpoints, are_refused_without_a_state) {
  auto& on = this->device_memory;
  extension::private_pool pool(on);
  void* const p = this->allocate(pool, 5_MiB);
  EXPECT_EQ(this->refuse(pool, extension::pool_checkpoint()), "the checkpoint is empty");
  EXPECT_STREQ(checkpoints_of(on).record(pool_id{}).why(), "the default pools are not a private pool");
  EXPECT_STREQ(checkpoints_of(on).record(pool_id{123456789}).why(), "no such pool exists");
  const extension::pool_checkpoint none = checkpoints_of(on).record(pool_id{123456789});
  EXPECT_EQ(none.pool(), pool_id{});
  EXPECT_EQ(this->refuse(pool, none), "no such pool exists");

  extension::pool_checkpoint made = this->checkpoint(pool);
  const extension::pool_checkpoint moved(std::move(made));
  EXPECT_STREQ(made.why(), "the checkpoint is empty");  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(this->refuse(pool, made), "the checkpoint is empty");
  typename TestFixture::allocator elsewhere;
  EXPECT_STREQ(checkpoints_of(elsewhere).restore(moved).why, "the checkpoint is of another allocator");

  extension::private_pool from(on);
  const extension::private_pool to(std::move(from));
  EXPECT_STREQ(checkpoints_of(from).record().why(),
               "no such pool exists");  // NOLINT(bugprone-use-after-move)
  (void)this->restore(pool, moved);
  made = extension::pool_checkpoint();
  this->free(p);
}

TYPED_TEST(checkpoints, need_a_pool_in_use) {
  auto& on = this->device_memory;
  const pool_id pool = pools(on).create();
  ASSERT_TRUE(pools(on).open(pool, extension::scope_kind::capture));
  void* const p = on.allocate(5_MiB, one);
  ASSERT_TRUE(pools(on).close(pool));
  const extension::pool_checkpoint made = checkpoints_of(on).record(pool);
  ASSERT_TRUE(made);
  ASSERT_TRUE(pools(on).release(pool));
  EXPECT_STREQ(checkpoints_of(on).record(pool).why(), "the pool has no use");
  EXPECT_STREQ(checkpoints_of(on).restore(made).why, "the pool has no use");
  this->free(p);
  pools(on).trim(pool);
  EXPECT_STREQ(checkpoints_of(on).restore(made).why, "no such pool exists");
}

TYPED_TEST(checkpoints, are_refused_while_blocks_are_live_by_handle) {
  auto& on = this->device_memory;
  extension::private_pool pool(on);
  void* const p = this->allocate(pool, 5_MiB);
  const extension::pool_checkpoint made = this->checkpoint(pool);
  block_handle h;
  {
    const extension::pool_scope scope(pool, extension::scope_kind::capture);
    h = on.allocate_by_handle(40_MiB, one);
  }
  EXPECT_STREQ(checkpoints_of(pool).record().why(), "a block of the pool is live by handle");
  EXPECT_EQ(this->refuse(pool, made), "a block of the pool is live by handle");
  on.deallocate(h);
  EXPECT_TRUE(checkpoints_of(pool).record());
  (void)this->restore(pool, made);
  this->free(p);
}

TYPED_TEST(checkpoints, work_while_a_scope_is_open) {
  auto& on = this->device_memory;
  extension::private_pool pool(on);
  const extension::pool_scope scope(pool, extension::scope_kind::capture);
  void* const p = on.allocate(5_MiB, one);
  const extension::pool_checkpoint made = this->checkpoint(pool);
  this->free(p);
  EXPECT_EQ(in(this->restore(pool, made).allocated), (addresses{p}));
  this->free(p);
}

// Recipes in which streams are recorded.
template <typename Recipe>
struct checkpoint_streams : checkpoints<Recipe> {};
using event_recipes = testing::Types<pytorch<>, pytorch_family::expandable, stitched, cuda_async>;
TYPED_TEST_SUITE(checkpoint_streams, event_recipes);

TYPED_TEST(checkpoint_streams, are_refused_while_a_block_is_pending) {
  auto& on = this->device_memory;
  extension::private_pool pool(on);
  void* const p = this->allocate(pool, 5_MiB);
  const extension::pool_checkpoint made = this->checkpoint(pool);
  ASSERT_TRUE(on.record_stream(p, two));
  EXPECT_TRUE(checkpoints_of(pool).record()) << "a record alone is no event";
  EXPECT_EQ(this->refuse(pool, made), "streams are recorded for a live block of a recorded segment");
  on.provider().submit(two, second);
  this->free(p);
  EXPECT_STREQ(checkpoints_of(pool).record().why(), "a block of the pool is pending");
  EXPECT_EQ(this->refuse(pool, made), "a block of a recorded segment is pending");
  on.provider().advance(second);
  ASSERT_TRUE(on.process_events());
  EXPECT_TRUE(checkpoints_of(pool).record());
  (void)this->restore(pool, made);
  this->free(p);
}

TYPED_TEST(checkpoint_streams, bring_no_recorded_streams_back) {
  auto& on = this->device_memory;
  extension::private_pool pool(on);
  void* const p = this->allocate(pool, 5_MiB);
  ASSERT_TRUE(on.record_stream(p, two));
  const extension::pool_checkpoint made = this->checkpoint(pool);
  this->free(p);
  on.process_events();
  (void)this->restore(pool, made);
  EXPECT_FALSE(on.has_recorded_streams());
  on.provider().submit(two, second);
  this->free(p);
  EXPECT_EQ(on.current_usage().pending(), 0u);
}

TYPED_TEST(checkpoint_streams, leave_later_blocks_pending) {
  auto& on = this->device_memory;
  extension::private_pool pool(on);
  void* const early = this->allocate(pool, 19_MiB);
  const extension::pool_checkpoint made = this->checkpoint(pool);
  void* const late = this->allocate(pool, 60_MiB, two);
  ASSERT_TRUE(on.record_stream(late, one));
  on.provider().submit(one, second);
  const extension::restore_result result = this->restore(pool, made);
  EXPECT_EQ(in(result.freed), (addresses{early, late}));
  EXPECT_GE(on.current_usage().pending(), 60_MiB);
  (void)this->restore(pool, made);
  on.provider().advance(second);
  ASSERT_TRUE(on.process_events());
  EXPECT_EQ(on.audit(), nullptr);
  this->free(early);
}

TYPED_TEST(checkpoint_streams, give_events_to_blocks_freed_in_a_scope) {
  auto& on = this->device_memory;
  extension::private_pool pool(on);
  void* const p = this->allocate(pool, 5_MiB);
  {
    const extension::pool_scope scope(pool, extension::scope_kind::capture);
    ASSERT_TRUE(on.record_stream(p, two));
    this->free(p);
    EXPECT_STREQ(checkpoints_of(pool).record().why(), "a block of the pool is pending")
        << "the scope is open";
  }
  EXPECT_TRUE(checkpoints_of(pool).record()) << "the use was recorded in the scope, so it needs no event";
  EXPECT_EQ(on.current_usage().pending(), 0u);
  void* const q = this->allocate(pool, 5_MiB);
  ASSERT_TRUE(on.record_stream(q, two));
  {
    const extension::pool_scope scope(pool, extension::scope_kind::capture);
    this->free(q);
  }
  EXPECT_STREQ(checkpoints_of(pool).record().why(), "a block of the pool is pending")
      << "it has an event now";
  on.process_events();
  EXPECT_EQ(on.audit(), nullptr);
}

TEST(checkpoint_shared_streams, are_refused_while_another_stream_works_on_a_block) {
  caching_allocator<cuda_async, simulated_device, extension::private_pools, extension::checkpoints,
                    extension::sleep_mode>
      on;
  extension::private_pool pool(on);
  void *p = nullptr, *q = nullptr;
  {
    const extension::pool_scope scope(pool, extension::scope_kind::capture);
    p = on.allocate(20_MiB, one);
  }
  const extension::pool_checkpoint made = checkpoints_of(pool).record();
  ASSERT_TRUE(made);
  on.deallocate(p);
  {
    const extension::pool_scope scope(pool, extension::scope_kind::capture);
    q = on.allocate(10_MiB, two);
  }
  ASSERT_EQ(q, p) << "from the other stream";
  on.provider().submit(two, second);
  EXPECT_STREQ(checkpoints_of(pool).restore(made).why,
               "another stream has unfinished work on a recorded block");
  on.deallocate(q);
  EXPECT_STREQ(checkpoints_of(pool).restore(made).why,
               "another stream has unfinished work on a recorded block");
  EXPECT_EQ(on.audit(), nullptr);
  on.provider().advance(second);
  const extension::restore_result result = checkpoints_of(pool).restore(made);
  ASSERT_TRUE(result) << result.why;
  EXPECT_EQ(in(result.allocated), (addresses{p}));
  EXPECT_EQ(live_block_at(on, p).stream, one);
  EXPECT_EQ(live_block_at(on, p).bytes, 20_MiB);
  EXPECT_EQ(on.audit(), nullptr);
  on.deallocate(p);
}

TEST(checkpoint_shared_streams, bring_the_streams_of_blocks_back) {
  caching_allocator<cuda_async, simulated_device, extension::private_pools, extension::checkpoints,
                    extension::sleep_mode>
      on;
  extension::private_pool pool(on);
  std::vector<void*> held;
  {
    const extension::pool_scope scope(pool, extension::scope_kind::capture);
    for (std::uint64_t i = 0; i < 40; ++i) held.push_back(on.allocate(2_MiB, stream_id{i}));
    for (std::size_t i = 0; i < held.size(); i += 3) on.deallocate(held[i]);
  }
  const auto before = blocks_of(on, pool.id());
  const extension::pool_checkpoint made = checkpoints_of(pool).record();
  ASSERT_TRUE(made);
  for (std::size_t i = 0; i < held.size(); ++i) {
    if (i % 3 != 0) on.deallocate(held[i]);
  }
  {
    const extension::pool_scope scope(pool, extension::scope_kind::capture);
    (void)on.allocate(30_MiB, stream_id{77});
  }
  on.trim();
  on.evict_idle();
  const extension::restore_result result = checkpoints_of(pool).restore(made);
  ASSERT_TRUE(result) << result.why;
  EXPECT_EQ(on.audit(), nullptr);
  std::vector<seen> after = blocks_of(on, pool.id());
  std::erase_if(after, [&](const seen& b) { return !std::ranges::binary_search(before, b); });
  EXPECT_EQ(after, before);
  for (void* p : result.allocated) on.deallocate(p);
  EXPECT_EQ(on.audit(), nullptr);
}

// Memory that a recorded segment has lost.

template <typename Recipe>
struct checkpoint_ranges : checkpoints<Recipe> {};
using range_recipes = testing::Types<pytorch_family::expandable, small_steps, stitched>;
TYPED_TEST_SUITE(checkpoint_ranges, range_recipes);

TYPED_TEST(checkpoint_ranges, grow_and_stay_grown) {
  extension::private_pool pool(this->device_memory);
  void* const p = this->allocate(pool, 5_MiB);
  const extension::pool_checkpoint made = this->checkpoint(pool);
  void* const q = this->allocate(pool, 35_MiB);
  ASSERT_EQ(static_cast<std::byte*>(q), static_cast<std::byte*>(p) + 5_MiB) << "the range grows at its end";
  const std::size_t reserved = this->reserved();
  this->free(p);
  (void)this->restore(pool, made);
  EXPECT_EQ(this->reserved(), reserved);
  EXPECT_EQ(this->allocate(pool, 35_MiB), q);
  EXPECT_EQ(this->reserved(), reserved);
}

TYPED_TEST(checkpoint_ranges, are_refused_while_the_pool_sleeps) {
  auto& on = this->device_memory;
  extension::private_pool pool(on);
  (void)this->allocate(pool, 30_MiB);
  void* const idle = this->allocate(pool, 50_MiB);
  const extension::pool_checkpoint whole = this->checkpoint(pool);
  this->free(idle);
  ASSERT_TRUE(sleep_mode_of(pool).sleep(extension::sleep_contents::discard));
  EXPECT_STREQ(checkpoints_of(pool).record().why(), "the pool sleeps");
  EXPECT_EQ(this->refuse(pool, whole), "the pool sleeps");
  ASSERT_TRUE(sleep_mode_of(pool).wake());
  EXPECT_EQ(this->refuse(pool, whole), "memory of a recorded segment went back to the device")
      << "sleep empties the cache of the pool";
  EXPECT_EQ(this->allocate(pool, 50_MiB), idle);
  (void)this->restore(pool, whole);
}

TYPED_TEST(checkpoint_ranges, skip_memory_that_was_not_mapped) {
  auto& on = this->device_memory;
  extension::private_pool pool(on);
  void* const low = this->allocate(pool, 40_MiB);
  void* const middle = this->allocate(pool, 40_MiB);
  void* const high = this->allocate(pool, 40_MiB);
  this->free(middle);
  ASSERT_TRUE(sleep_mode_of(pool).sleep(extension::sleep_contents::discard) && sleep_mode_of(pool).wake());
  const auto before = blocks_of(on, pool.id());
  ASSERT_LT(this->reserved(), 100_MiB) << "there is a hole";
  const extension::pool_checkpoint made = this->checkpoint(pool);
  (void)this->restore(pool, made);
  EXPECT_EQ(blocks_of(on, pool.id()), before);
  ASSERT_EQ(this->allocate(pool, 40_MiB), middle) << "the hole is mapped";
  this->free(low);
  const extension::restore_result result = this->restore(pool, made);
  EXPECT_EQ(in(result.allocated), (addresses{low, high}));
  EXPECT_EQ(this->allocate(pool, 40_MiB), middle);
}

TEST(checkpoint_stitched, keep_their_chunks_if_other_pools_grow) {
  caching_allocator<stitched, simulated_device, extension::private_pools, extension::checkpoints,
                    extension::sleep_mode>
      on{simulated_device{simulated_device::options{.capacity = 100_MiB}}};
  extension::private_pool pool(on);
  void* p = nullptr;
  {
    const extension::pool_scope scope(pool, extension::scope_kind::capture);
    p = on.allocate(80_MiB, one);
  }
  const extension::pool_checkpoint made = checkpoints_of(pool).record();
  ASSERT_TRUE(made);
  on.deallocate(p);
  EXPECT_EQ(on.try_allocate(90_MiB, two), nullptr);
  const extension::restore_result result = checkpoints_of(pool).restore(made);
  EXPECT_TRUE(result) << result.why;
  EXPECT_EQ(in(result.allocated), (addresses{p}));
  EXPECT_EQ(on.audit(), nullptr);
}

/// An extension that gives the free segment at an address back to the device.
struct giving_back {
  template <typename Core>
  class state : public tessera::detail::extension_defaults {
    using access = detail::core_access;

   public:
    state(typename Core::allocator& in, const giving_back&) noexcept : in_(in) {}
    [[nodiscard]] std::size_t give_back(void* p) noexcept {
      detail::block* found = nullptr;
      access::manager(in_).for_each_segment([&](detail::block& first) {
        if (first.address == reinterpret_cast<std::uintptr_t>(p)) found = &first;
      });
      return found != nullptr && found->is_free() ? access::backend(in_).release(*found) : 0;
    }

   private:
    typename Core::allocator& in_;
  };
  template <typename Allocator>
  struct door {
    explicit door(Allocator& of) noexcept : in(&of) {}
    [[nodiscard]] std::size_t release(void* p) const {
      return in->template visit_extension<giving_back>([p](auto& s) { return s.give_back(p); });
    }
    Allocator* in;
  };
};

TEST(checkpoint_segments, are_refused_after_a_segment_went_back) {
  caching_allocator<pytorch<>, simulated_device, extension::private_pools, extension::checkpoints,
                    giving_back>
      on;
  extension::private_pool pool(on);
  void *p = nullptr, *q = nullptr;
  {
    const extension::pool_scope scope(pool, extension::scope_kind::capture);
    p = on.allocate(30_MiB, one);
    q = on.allocate(30_MiB, one);
  }
  const extension::pool_checkpoint made = checkpoints_of(pool).record();
  on.deallocate(p);
  ASSERT_EQ(on.get<giving_back>().release(p), 30_MiB);
  EXPECT_STREQ(checkpoints_of(pool).restore(made).why, "a recorded segment went back to the device");
  EXPECT_NE(live_block_at(on, q).bytes, 0u) << "nothing changed";
  EXPECT_EQ(on.audit(), nullptr);
}

/// A device that gives every segment at one address, whatever its size.
class one_place {
 public:
  void* acquire(std::size_t bytes) noexcept { return bytes <= sizeof memory_ ? memory_ : nullptr; }
  bool release(void*, std::size_t) noexcept { return true; }
  [[nodiscard]] std::size_t capacity() const noexcept { return sizeof memory_; }
  [[nodiscard]] static std::size_t granularity() noexcept { return 4096; }

 private:
  alignas(4096) inline static std::byte memory_[1 << 20];
};

TEST(checkpoint_segments, are_refused_if_another_segment_is_in_their_place) {
  using recipe = with<power_of_two, reuse_immediately>;
  caching_allocator<recipe, one_place, extension::private_pools, extension::checkpoints, giving_back> on;
  extension::private_pool pool(on);
  const auto get = [&](std::size_t bytes) {
    const extension::pool_scope scope(pool, extension::scope_kind::capture);
    return on.try_allocate(bytes);
  };
  const auto release = [&](void* p) {
    on.deallocate(p);
    return on.get<giving_back>().release(p);
  };
  void* const p = get(8192);
  ASSERT_NE(p, nullptr);
  const extension::pool_checkpoint made = checkpoints_of(pool).record();
  ASSERT_GT(release(p), 0u);
  ASSERT_EQ(get(65536), p);
  EXPECT_STREQ(checkpoints_of(pool).restore(made).why, "a larger segment is where a recorded segment was");
  ASSERT_GT(release(p), 0u);
  ASSERT_EQ(get(4096), p);
  EXPECT_STREQ(checkpoints_of(pool).restore(made).why,
               "memory of a recorded segment went back to the device");
  ASSERT_GT(release(p), 0u);
  ASSERT_EQ(get(8192), p);
  EXPECT_TRUE(checkpoints_of(pool).restore(made)) << "an equal segment serves, as in PyTorch";
  EXPECT_EQ(on.audit(), nullptr);
}

// Statistics and events, as in PyTorch.

TEST(checkpoint_events, are_those_of_frees_and_allocations) {
  caching_allocator<pytorch<>, simulated_device, extension::private_pools, extension::checkpoints,
                    extension::sleep_mode, extension::observer<history<>>>
      on;
  extension::private_pool pool(on);
  void *p = nullptr, *q = nullptr, *late = nullptr;
  {
    const extension::pool_scope scope(pool, extension::scope_kind::capture);
    p = on.allocate(2'000'000, one);
    q = on.allocate(2'000'000, one);
  }
  on.deallocate(p);
  const extension::pool_checkpoint made = checkpoints_of(pool).record();
  {
    const extension::pool_scope scope(pool, extension::scope_kind::capture);
    late = on.allocate(30_MiB, one);
  }
  std::vector<std::tuple<action, void*, std::size_t>> events;
  std::size_t skipped = 0;
  observer_of(on).for_each([&](const auto&) { ++skipped; });
  ASSERT_TRUE(checkpoints_of(pool).restore(made));
  observer_of(on).for_each([&](const auto& entry) {
    const allocator_event& e = entry.event;
    EXPECT_EQ(e.stream, one);
    if (skipped > 0) {
      --skipped;
    } else {
      events.emplace_back(e.what, reinterpret_cast<void*>(e.address), e.bytes);
    }
  });
  const std::size_t size = 2'000'384, rest = 20_MiB - 2 * size;
  void* const third = static_cast<std::byte*>(p) + 2 * size;
  using enum allocator_event::action;
  const std::vector<std::tuple<action, void*, std::size_t>> of_late{{free_requested, late, 30_MiB},
                                                                    {free_completed, late, 30_MiB}};
  const std::vector<std::tuple<action, void*, std::size_t>> expected{{free_requested, q, 2'000'000},
                                                                     {free_completed, q, 2'000'000},  //
                                                                     {alloc, p, size},
                                                                     {alloc, q, size},
                                                                     {alloc, third, rest},
                                                                     {free_requested, p, size},
                                                                     {free_completed, p, size},  //
                                                                     {free_requested, third, rest},
                                                                     {free_completed, third, rest}};
  std::erase_if(events, [&](const auto& e) { return e == of_late[0] || e == of_late[1]; });
  EXPECT_EQ(events, expected);
  const auto now = on.statistics();
  EXPECT_EQ(now.all.allocation.current, 1);
  EXPECT_EQ(now.all.allocation.allocated, 3 + 3);
  EXPECT_EQ(now.all.allocation.freed, 1 + 2 + 2);
  EXPECT_EQ(now.all.requested_bytes.current, static_cast<std::int64_t>(size)) << "of the block";
  EXPECT_EQ(now.all.inactive_split.current, 2);
  EXPECT_EQ(now.all.inactive_split_bytes.current, static_cast<std::int64_t>(20_MiB - size));
  EXPECT_EQ(now.num_device_alloc, 2u);
  EXPECT_EQ(now.num_device_free, 0u);
  EXPECT_EQ(live_block_at(on, q).requested, size);
  on.deallocate(q, size);
}

TEST(checkpoint_events, count_oversize_blocks) {
  caching_allocator<pytorch<"max_split_size_mb:30">, simulated_device, extension::private_pools,
                    extension::checkpoints, extension::sleep_mode>
      on;
  extension::private_pool pool(on);
  void* p = nullptr;
  {
    const extension::pool_scope scope(pool, extension::scope_kind::capture);
    p = on.allocate(40_MiB, one);
  }
  const extension::pool_checkpoint made = checkpoints_of(pool).record();
  on.deallocate(p);
  EXPECT_EQ(on.statistics().oversize_allocations.current, 0);
  ASSERT_TRUE(checkpoints_of(pool).restore(made));
  EXPECT_EQ(on.statistics().oversize_allocations.current, 1);
  on.deallocate(p);
  EXPECT_EQ(on.statistics().oversize_allocations.current, 0);
  EXPECT_EQ(on.statistics().oversize_allocations.allocated, 2);
}

// Front ends.

TEST(checkpoint_front_ends, forward_the_calls) {
  locked<caching_allocator<pytorch<>, simulated_device, extension::private_pools, extension::checkpoints,
                           extension::sleep_mode>>
      on;
  extension::private_pool pool(on);
  void* p = nullptr;
  {
    const extension::pool_scope scope(pool, extension::scope_kind::capture);
    p = on.allocate(5_MiB, one);
  }
  const extension::pool_checkpoint made = checkpoints_of(pool).record();
  ASSERT_TRUE(made) << made.why();
  on.deallocate(p);
  const extension::restore_result result = checkpoints_of(pool).restore(made);
  ASSERT_TRUE(result) << result.why;
  EXPECT_EQ(in(result.allocated), (addresses{p}));
  EXPECT_STREQ(checkpoints_of(on).record(pool_id{}).why(), "the default pools are not a private pool");
  on.deallocate(p);
  EXPECT_FALSE(on.try_deallocate(p));
  EXPECT_EQ(on.audit(), nullptr);
}

TEST(checkpoint_front_ends, forward_to_the_recipe_of_the_settings) {
  for (const bool expandable : {false, true}) {
    using configured_type =
        configured<pytorch_family, caching_allocator<pytorch<>, simulated_device, extension::private_pools,
                                                     extension::checkpoints, extension::sleep_mode>>;
    configured_type on{configured_type::settings_type{.expandable_segments = expandable}};
    extension::private_pool pool(on);
    void* p = nullptr;
    {
      const extension::pool_scope scope(pool, extension::scope_kind::capture);
      p = on.allocate(5_MiB, one);
    }
    const extension::pool_checkpoint made = checkpoints_of(pool).record();
    on.deallocate(p);
    EXPECT_EQ(in(checkpoints_of(pool).restore(made).allocated), (addresses{p}));
    EXPECT_EQ(on.audit(), nullptr);
  }
}

TEST(checkpoint_front_ends, that_guard_blocks_have_none) {
  using recorded =
      caching_allocator<pytorch<>, host_pinned, extension::private_pools, extension::checkpoints>;
  static_assert(recorded::has<extension::checkpoints>);
  static_assert(guarded<recorded>::has<extension::private_pools>);
  static_assert(!guarded<recorded>::has<extension::checkpoints>);
}

// Random programs against PyTorch's rules, written down again without any of the library's structures.

/// A private pool of PyTorch 2.6 on one stream. The device's addresses are given to it.
class pytorch_pool {
 public:
  struct segment {
    bool is_small = false;
    std::size_t bytes = 0;
    std::map<std::uintptr_t, std::pair<std::size_t, bool>>
        blocks{};  // address to size and whether it is live
  };
  using pool_state = std::map<std::uintptr_t, segment>;

  [[nodiscard]] static std::size_t rounded(std::size_t bytes) { return (bytes + 511) / 512 * 512; }
  /// The address that serves a request; nothing if the pool grows.
  [[nodiscard]] std::optional<std::uintptr_t> predict(std::size_t bytes) const {
    const std::size_t size = rounded(bytes);
    std::optional<std::pair<std::size_t, std::uintptr_t>> best;
    for (const auto& [base, s] : now_) {
      if (s.is_small != (size <= 1_MiB)) continue;
      for (const auto& [address, b] : s.blocks) {
        if (!b.second && b.first >= size && (!best || std::pair(b.first, address) < *best))
          best = {b.first, address};
      }
    }
    return best ? std::optional(best->second) : std::nullopt;
  }
  void allocate_at(std::uintptr_t address, std::size_t bytes) {
    const std::size_t size = rounded(bytes);
    const bool is_small = size <= 1_MiB;
    if (!predict(bytes)) {
      const std::size_t segment_bytes = is_small        ? 2_MiB
                                        : size < 10_MiB ? 20_MiB
                                                        : (size + 2_MiB - 1) / 2_MiB * 2_MiB;
      now_[address] = {is_small, segment_bytes, {{address, {segment_bytes, false}}}};
    }
    segment& s = segment_at(address);
    auto& [block_bytes, is_live] = s.blocks.at(address);
    is_live = true;
    ++allocated;
    const std::size_t rest = block_bytes - size;
    if (is_small ? rest >= 512 : rest > 1_MiB) {
      block_bytes = size;
      s.blocks[address + size] = {rest, false};
    }
  }
  void free(std::uintptr_t address) {
    segment& s = segment_at(address);
    s.blocks.at(address).second = false;
    ++freed;
    coalesce(s);
  }
  [[nodiscard]] const pool_state& checkpoint() const { return now_; }
  void restore(const pool_state& recorded) {
    for (const std::uintptr_t p : live()) free(p);
    for (const auto& [base, s] : recorded) {
      now_.at(base) = s;
      for (const auto& [address, b] : s.blocks) {
        ++allocated;
        freed += b.second ? 0 : 1;
      }
    }
  }
  [[nodiscard]] std::set<std::uintptr_t> live() const { return live_in(now_); }
  [[nodiscard]] static std::set<std::uintptr_t> live_in(const pool_state& of) {
    std::set<std::uintptr_t> result;
    for (const auto& [base, s] : of) {
      for (const auto& [address, b] : s.blocks) {
        if (b.second) result.insert(address);
      }
    }
    return result;
  }
  [[nodiscard]] std::int64_t inactive_split() const {
    std::int64_t count = 0;
    for (const auto& [base, s] : now_) {
      for (const auto& [address, b] : s.blocks) count += !b.second && s.blocks.size() > 1;
    }
    return count;
  }

  std::int64_t allocated = 0, freed = 0;

 private:
  segment& segment_at(std::uintptr_t address) { return std::prev(now_.upper_bound(address))->second; }
  static void coalesce(segment& s) {
    for (auto at = s.blocks.begin(); at != s.blocks.end();) {
      const auto next = std::next(at);
      if (next != s.blocks.end() && !at->second.second && !next->second.second) {
        at->second.first += next->second.first;
        s.blocks.erase(next);
      } else {
        at = next;
      }
    }
  }

  pool_state now_;
};

[[nodiscard]] std::set<std::uintptr_t> numbers(const auto& list) {
  std::set<std::uintptr_t> result;
  for (void* const p : list) result.insert(reinterpret_cast<std::uintptr_t>(p));
  return result;
}

TEST(checkpoint_model, decides_and_counts_like_pytorch) {
  std::size_t restored = 0, grown = 0;
  for (unsigned seed = 1; seed <= 40; ++seed) {
    caching_allocator<pytorch<>, simulated_device, extension::private_pools, extension::checkpoints,
                      extension::sleep_mode>
        on;
    extension::private_pool pool(on);
    pytorch_pool model;
    std::vector<std::pair<extension::pool_checkpoint, pytorch_pool::pool_state>> made;
    std::mt19937 random(seed);
    for (int step = 0; step < 400; ++step) {
      const auto live = model.live();
      const std::size_t choice = random() % 40;
      if (choice == 0) {
        made.emplace_back(checkpoints_of(pool).record(), model.checkpoint());
        ASSERT_TRUE(made.back().first);
      } else if (choice == 1 && !made.empty()) {
        const auto& [checkpoint, recorded] = made[random() % made.size()];
        const extension::restore_result result = checkpoints_of(pool).restore(checkpoint);
        ASSERT_TRUE(result) << result.why;
        ASSERT_EQ(numbers(result.freed), live);
        ASSERT_EQ(numbers(result.allocated), pytorch_pool::live_in(recorded));
        model.restore(recorded);
        ++restored;
      } else if (live.size() > 30 || (choice < 18 && !live.empty())) {
        const std::uintptr_t p =
            *std::next(live.begin(), static_cast<std::ptrdiff_t>(random() % live.size()));
        on.deallocate(reinterpret_cast<void*>(p));
        model.free(p);
      } else {
        const std::size_t bytes = 1 + random() % (random() % 3 == 0 ? 12_MiB : 900'000);
        const auto expected = model.predict(bytes);
        const extension::pool_scope scope(pool, extension::scope_kind::capture);
        const auto p = reinterpret_cast<std::uintptr_t>(on.allocate(bytes, one));
        if (expected) {
          ASSERT_EQ(p, *expected) << "seed " << seed << ", step " << step;
        } else {
          ++grown;
        }
        model.allocate_at(p, bytes);
      }
      ASSERT_EQ(on.audit(), nullptr) << "seed " << seed << ", step " << step;
      const auto now = on.statistics().all;
      ASSERT_EQ(now.allocation.current, static_cast<std::int64_t>(model.live().size()));
      ASSERT_EQ(now.allocation.allocated, model.allocated);
      ASSERT_EQ(now.allocation.freed, model.freed);
      ASSERT_EQ(now.inactive_split.current, model.inactive_split());
    }
  }
  EXPECT_GT(restored, 200u);
  EXPECT_GT(grown, 200u);
}

TYPED_TEST(checkpoints, bring_random_states_back) {
  auto& on = this->device_memory;
  std::size_t same = 0, restored = 0;
  for (unsigned seed = 1; seed <= 60; ++seed) {
    extension::private_pool pool(on);
    std::mt19937 random(seed);
    std::vector<void*> live;
    const auto run = [&](int steps) {
      std::vector<void*> got;
      for (int step = 0; step < steps; ++step) {
        if (live.size() > 12 || (!live.empty() && random() % 2 == 0)) {
          const std::size_t at = random() % live.size();
          this->free(live[at]);
          live.erase(live.begin() + static_cast<std::ptrdiff_t>(at));
          continue;
        }
        const std::size_t bytes = 1 + random() % (random() % 4 == 0 ? 6_MiB : 500'000);
        void* const p = this->allocate(pool, bytes, random() % 5 == 0 ? two : one);
        if (p == nullptr) continue;
        got.push_back(p);
        live.push_back(p);
      }
      return got;
    };
    (void)run(60);
    const auto before = blocks_of(on, pool.id());
    const std::vector<void*> recorded = live;
    const extension::pool_checkpoint made = this->checkpoint(pool);
    const std::mt19937 then = random;
    const std::size_t size = bytes_of(on, pool.id());
    std::size_t last_size = size;
    std::vector<void*> first = run(40);
    for (int again = 0; again < 3; ++again) {
      const std::size_t now = bytes_of(on, pool.id());
      const extension::restore_result result = this->restore(pool, made);
      ASSERT_TRUE(result);
      ASSERT_EQ(in(result.freed), addresses(live.begin(), live.end()));
      ASSERT_EQ(in(result.allocated), addresses(recorded.begin(), recorded.end()));
      std::vector<seen> after = blocks_of(on, pool.id());
      for (const seen& b : after) {
        if (b.is == state::live) {
          ASSERT_TRUE(std::ranges::binary_search(before, b)) << b.bytes;
        }
      }
      if (now == size) {
        ASSERT_EQ(after, before);
        ++same;
      }
      live = recorded;
      random = then;
      const std::vector<void*> next = run(40);
      // Without an order by size, the memory acquired later serves in the order of its frees.
      const bool is_by_size = detail::free_order_of<typename TypeParam::split> != free_order::newest_in_class;
      if (now == (is_by_size ? last_size : size)) {
        ASSERT_EQ(next, first) << "seed " << seed << ", again " << again;
      }
      first = next;
      last_size = now;
      ++restored;
    }
    for (void* p : live) this->free(p);
    live.clear();
  }
  EXPECT_EQ(restored, 180u);
  EXPECT_GT(same, 0u);
}

}  // namespace
