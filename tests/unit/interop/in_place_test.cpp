// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/concurrent/locked.hpp>
#include <tessera/concurrent/per_stream.hpp>
#include <tessera/core/types.hpp>
#include <tessera/extension/observer.hpp>
#include <tessera/interop/paddle_passes.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

namespace {

using namespace tessera;
using torch = caching_allocator<pytorch<>, simulated_device>;
using event_action = allocator_event::action;

struct event_recorder {
  std::vector<allocator_event>* events;
  void on(const allocator_event& event) noexcept { events->push_back(event); }
};

static_assert(paddle_passes::may_reuse({}, {}));
static_assert(!paddle_passes::may_reuse({.last_readers = 2}, {}) &&
              !paddle_passes::may_reuse({.last_readers = 0}, {}));
static_assert(!paddle_passes::may_reuse({.uses = 2}, {}) &&
              !paddle_passes::may_reuse({.is_empty = true}, {}));
static_assert(!paddle_passes::may_reuse({.is_dense = false}, {}) &&
              !paddle_passes::may_reuse({.is_persistable = true}, {}));
static_assert(!paddle_passes::may_reuse({.is_pinned = true}, {}) &&
              !paddle_passes::may_reuse({.is_reused = true}, {}));
static_assert(!paddle_passes::may_reuse({.is_fetched = true}, {}));
static_assert(!paddle_passes::may_reuse({}, {.uses = 2}) &&
              !paddle_passes::may_reuse({}, {.is_first_version = false}));
static_assert(!paddle_passes::may_reuse({}, {.is_same_variable = true}) &&
              !paddle_passes::may_reuse({}, {.is_empty = true}));
static_assert(!paddle_passes::may_reuse({}, {.is_dense = false}) &&
              !paddle_passes::may_reuse({}, {.is_persistable = true}));
static_assert(!paddle_passes::may_reuse({}, {.is_pinned = true}) &&
              !paddle_passes::may_reuse({}, {.has_memory = true}));

TEST(in_place, an_output_gets_the_block_of_its_input_once) {
  torch pool;
  void* donor = pool.allocate(4_MiB);
  void* const at = donor;
  void* const output = allocate_in_place(pool, donor, 4_MiB - 100);
  EXPECT_EQ(output, at);
  EXPECT_EQ(donor, nullptr);
  void* const second = allocate_in_place(pool, donor, 4_MiB);
  EXPECT_NE(second, at);
  EXPECT_EQ(pool.statistics().all.allocation.current, 2);
  pool.deallocate(output, 4_MiB - 100);
  pool.deallocate(second);
  EXPECT_STREQ(pool.audit(), nullptr);
}

TEST(in_place, a_chain_works_in_one_buffer) {
  torch pool;
  void* a = pool.allocate(10_MiB);
  void* const at = a;
  void* b = allocate_in_place(pool, a, 10_MiB);
  void* c = allocate_in_place(pool, b, 10_MiB);
  EXPECT_EQ(c, at);
  EXPECT_EQ(pool.current_usage().allocated, 10_MiB);
  EXPECT_EQ(pool.statistics().all.allocated_bytes.peak, std::int64_t{10_MiB});
  pool.deallocate(c);
}

TEST(in_place, counts_as_an_allocation_and_a_free_do) {
  std::vector<allocator_event> events;
  using recording = extension::observer<event_recorder>;
  caching_allocator<pytorch<>, simulated_device, recording> pool(simulated_device{}, {},
                                                                 recording{{&events}});
  void* donor = pool.allocate(1000);
  const auto address = reinterpret_cast<std::uintptr_t>(donor);
  (void)pool.current_usage();
  events.clear();
  void* const output = allocate_in_place(pool, donor, 700, stream_id{});
  const auto all = pool.statistics().all;
  EXPECT_EQ(pool.current_usage().requested, 700u);
  EXPECT_EQ(all.requested_bytes, (counter{700, 1000, 1700, 1000}));
  EXPECT_EQ(all.allocation, (counter{1, 1, 2, 1}));
  EXPECT_EQ(all.allocated_bytes, (counter{1024, 1024, 2048, 1024}));
  EXPECT_EQ(all.active, (counter{1, 1, 2, 1}));
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0].what, event_action::free_requested);
  EXPECT_EQ(events[0].bytes, 1000u);
  EXPECT_EQ(events[1].what, event_action::free_completed);
  EXPECT_EQ(events[2].what, event_action::alloc);
  EXPECT_EQ(events[2].bytes, 700u);
  for (const allocator_event& e : events) {
    EXPECT_EQ(e.address, address);
    EXPECT_EQ(e.block, 1024u);
  }
  pool.deallocate(output, 700);
  EXPECT_EQ(pool.current_usage().requested, 0u);
}

TEST(in_place, counts_oversize_blocks_too) {
  torch pool(simulated_device{}, {.split = {.max = 32_MiB}});
  void* donor = pool.allocate(64_MiB);
  void* const output = allocate_in_place(pool, donor, 60_MiB);
  EXPECT_EQ(pool.statistics().oversize_allocations, (counter{1, 1, 2, 1}));
  pool.deallocate(output);
  EXPECT_EQ(pool.statistics().oversize_allocations, (counter{0, 1, 2, 2}));
}

TEST(in_place, an_output_that_does_not_fit_is_allocated_before_the_donor_is_freed) {
  torch pool;
  const auto goes_elsewhere = [&](std::size_t given, std::size_t wanted, stream_id stream = {}) {
    void* donor = pool.allocate(given);
    void* const at = donor;
    void* const output = allocate_in_place(pool, donor, wanted, stream);
    EXPECT_EQ(donor, nullptr);
    const bool elsewhere = output != at;
    EXPECT_FALSE(elsewhere && pool.try_deallocate(at));
    pool.deallocate(output);
    return elsewhere;
  };
  EXPECT_TRUE(goes_elsewhere(1000, 1025));                  // too small
  EXPECT_TRUE(goes_elsewhere(1024, 512));                   // would be cut
  EXPECT_TRUE(goes_elsewhere(4_MiB, 2_MiB));                // would be cut
  EXPECT_TRUE(goes_elsewhere(1_MiB + 1, 1_MiB));            // belongs to another pool
  EXPECT_TRUE(goes_elsewhere(4_MiB, 4_MiB, stream_id{7}));  // is shared by another stream
  EXPECT_FALSE(goes_elsewhere(4_MiB, 3_MiB));
  EXPECT_FALSE(goes_elsewhere(1, 512));
  EXPECT_EQ(pool.current_usage().allocated, 0u);
  EXPECT_STREQ(pool.audit(), nullptr);
}

template <typename Recipe>
bool passes_on(std::size_t given, std::size_t wanted) {
  caching_allocator<Recipe, simulated_device> pool;
  void* donor = pool.allocate(given);
  void* const at = donor;
  void* const output = allocate_in_place(pool, donor, wanted);
  pool.deallocate(output);
  return output == at;
}
TEST(in_place, each_policy_may_forbid_it) {
  using whole = with<pytorch<>, split_never<>>;
  EXPECT_TRUE(passes_on<whole>(4_MiB, 2_MiB));
  EXPECT_FALSE(passes_on<whole>(12_MiB, 12_MiB + 1));
  EXPECT_FALSE(passes_on<whole>(4_MiB, 1_MiB));  // belongs to another pool
  EXPECT_TRUE(passes_on<power_of_two>(1000, 513));
  EXPECT_FALSE(passes_on<power_of_two>(1000, 512));  // only its own size may serve
}

TEST(in_place, a_block_that_another_stream_uses_is_not_overwritten) {
  torch pool;
  void* donor = pool.allocate(1_MiB);
  void* const at = donor;
  ASSERT_TRUE(pool.record_stream(donor, stream_id{5}));
  pool.provider().submit(stream_id{5}, 1'000'000'000);
  void* const output = allocate_in_place(pool, donor, 1_MiB);
  EXPECT_NE(output, at);
  EXPECT_EQ(pool.current_usage().pending(), 1_MiB);
  pool.deallocate(output);
}

TEST(in_place, without_a_donor_or_without_bytes_it_is_as_allocate_and_free) {
  torch pool;
  void* none = nullptr;
  void* const output = allocate_in_place(pool, none, 512);
  EXPECT_NE(output, nullptr);
  void* donor = output;
  EXPECT_EQ(allocate_in_place(pool, donor, 0), nullptr);
  EXPECT_EQ(donor, nullptr);
  EXPECT_EQ(pool.current_usage().allocated, 0u);
}

TEST(in_place, a_failure_leaves_the_donor_as_it_was) {
  torch pool(simulated_device({.capacity = 20_MiB}));
  void* donor = pool.allocate(20_MiB);
  void* const at = donor;
  EXPECT_THROW((void)allocate_in_place(pool, donor, 21_MiB), out_of_memory);
  EXPECT_EQ(donor, at);
  pool.deallocate(donor);
}

TEST(in_place_death, a_donor_that_is_not_live_aborts) {
  torch pool;
  void* donor = pool.allocate(512);
  pool.deallocate(donor);
  // The request gets the block of the donor or another one.
  EXPECT_DEATH((void)allocate_in_place(pool, donor, 512), "the donor is not a live block");
  EXPECT_DEATH((void)allocate_in_place(pool, donor, 4_MiB), "not the address of a live block");
}

TEST(in_place, works_in_ranges_too) {
  caching_allocator<pytorch_family::expandable, simulated_device> pool;
  void* donor = pool.allocate(6_MiB);
  void* const at = donor;
  void* const output = allocate_in_place(pool, donor, 6_MiB - 1);
  EXPECT_EQ(output, at);
  pool.deallocate(output);
  EXPECT_STREQ(pool.audit(), nullptr);
}

TEST(in_place, works_with_locks_and_in_arenas) {
  locked<caching_allocator<pytorch<>, simulated_device>> one;
  void* donor = one.allocate(3_MiB);
  void* at = donor;
  EXPECT_EQ(allocate_in_place(one, donor, 3_MiB), at);
  one.deallocate(at, 3_MiB);
  per_stream<caching_allocator<pytorch<>, simulated_device>> arenas;
  donor = at = arenas.allocate(3_MiB, stream_id{1});
  EXPECT_EQ(allocate_in_place(arenas, donor, 2_MiB + 512_KiB, stream_id{1}), at);
  donor = at;
  void* const elsewhere = allocate_in_place(arenas, donor, 3_MiB, stream_id{2});
  EXPECT_NE(elsewhere, at);
  arenas.deallocate(elsewhere);
  EXPECT_EQ(arenas.current_usage().allocated, 0u);
}

/// All current statistics equal those of an allocator that allocates and frees instead.
TEST(in_place, counters_are_as_after_allocate_and_free) {
  torch in_place, plain;
  std::mt19937_64 random(7);
  std::vector<std::pair<void*, void*>> live;
  for (int i = 0; i < 5'000; ++i) {
    const std::size_t bytes = 1 + random() % (std::size_t{1} << (4 + random() % 20));
    if (live.size() < 50) {
      live.emplace_back(in_place.allocate(bytes), plain.allocate(bytes));
      continue;
    }
    auto& [p, q] = live[random() % live.size()];
    p = allocate_in_place(in_place, p, bytes);
    void* const fresh = plain.allocate(bytes);
    plain.deallocate(q);
    q = fresh;
    const auto a = in_place.statistics().all, b = plain.statistics().all;
    ASSERT_EQ(a.requested_bytes.current, b.requested_bytes.current);
    ASSERT_EQ(a.requested_bytes.allocated, b.requested_bytes.allocated);
    ASSERT_EQ(a.allocation.allocated, b.allocation.allocated);
    ASSERT_EQ(a.allocation.freed, b.allocation.freed);
    ASSERT_EQ(a.active.current, b.active.current);
  }
  ASSERT_STREQ(in_place.audit(), nullptr);
  for (auto& [p, q] : live) in_place.deallocate(p), plain.deallocate(q);
  EXPECT_EQ(in_place.current_usage().allocated, 0u);
}

}  // namespace
