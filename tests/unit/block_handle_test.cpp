// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/extension/observer.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

#include "patterns.hpp"

namespace {

using namespace tessera;
using pool_type = caching_allocator<pytorch<>, simulated_device>;

TEST(block_handle, stands_for_a_block_that_no_address_finds) {
  pool_type pool;
  const block_handle h = pool.allocate_by_handle(5_MiB);
  ASSERT_TRUE(h);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(h.data()) % min_alignment, 0u);
  EXPECT_EQ(pool.current_usage().allocated, 5_MiB);
  EXPECT_FALSE(pool.try_deallocate(h.data()));
  EXPECT_FALSE(pool.try_record_stream(h.data(), stream_id{1}));
  EXPECT_STREQ(pool.audit(), nullptr);
  pool.deallocate(h);
  EXPECT_EQ(pool.current_usage().allocated, 0u);
  EXPECT_EQ(pool.statistics().all.allocation.freed, 1);
  EXPECT_STREQ(pool.audit(), nullptr);
}

TEST(block_handle, is_empty_after_a_failed_allocation) {
  pool_type pool{simulated_device{{.capacity = 1_MiB}}};
  EXPECT_FALSE(pool.allocate_by_handle(0));
  EXPECT_FALSE(pool.allocate_by_handle(1_GiB));
  EXPECT_EQ(block_handle().data(), nullptr);
  pool.deallocate(block_handle());
  EXPECT_FALSE(pool.record_stream(block_handle(), stream_id{1}));
}

/// A caller in C that keeps a context for each block.
struct c_block {
  void* data;
  void* context;
};
TEST(block_handle, converts_to_a_pointer_for_c) {
  pool_type pool;
  const block_handle h = pool.allocate_by_handle(1_MiB);
  const c_block kept{h.data(), h.to_pointer()};
  EXPECT_NE(kept.context, kept.data);
  EXPECT_EQ(block_handle::from_pointer(kept.context), h);
  EXPECT_EQ(block_handle::from_pointer(kept.context).data(), kept.data);
  EXPECT_EQ(block_handle().to_pointer(), nullptr);
  EXPECT_EQ(block_handle::from_pointer(nullptr), block_handle());
  EXPECT_TRUE(pool.record_stream(block_handle::from_pointer(kept.context), stream_id{}));
  pool.deallocate(block_handle::from_pointer(kept.context));
  EXPECT_EQ(pool.current_usage().allocated, 0u);
}
TEST(block_handle_death, is_not_taken_from_any_pointer) {
  pool_type pool;
  const block_handle h = pool.allocate_by_handle(1_MiB);
  constexpr const char* words =
      "tessera: block_handle::from_pointer: not a pointer that to_pointer gave .pointer 0x";
  EXPECT_DEATH((void)block_handle::from_pointer(h.data()), words);
  EXPECT_DEATH((void)block_handle::from_pointer(pool.allocate(1_MiB)), words);
  EXPECT_DEATH((void)block_handle::from_pointer(h.block()), words);
  EXPECT_DEATH((void)block_handle::from_pointer(&pool), words);
}
TEST(block_handle_death, of_no_live_block_is_not_recorded) {
  pool_type pool;
  const block_handle h = pool.allocate_by_handle(1_MiB);
  EXPECT_DEATH((void)pool.record_stream(h.data(), stream_id{1}),
               "record_stream: this block was allocated by handle; pass its handle");
  EXPECT_DEATH(pool.deallocate(h.data()), "deallocate: this block was allocated by handle; pass its handle");
  EXPECT_DEATH(
      pool.deallocate(static_cast<char*>(h.data()) + 64),
      "deallocate: not the address of a live block; it lies 64 bytes into a live block of 1048576 bytes "
      "at " AN_ADDRESS ", stream 0, which was given as a handle");
  pool.deallocate(h);
  EXPECT_DEATH((void)pool.record_stream(h, stream_id{1}), "record_stream: not the handle of a live block");
}

TEST(block_handle, is_held_back_for_recorded_streams) {
  pool_type pool;
  pool.provider().hold_events(true);
  const block_handle h = pool.allocate_by_handle(1_KiB);
  EXPECT_TRUE(pool.record_stream(h, stream_id{4}));
  EXPECT_TRUE(pool.record_stream(h, stream_id{4}));
  EXPECT_STREQ(pool.audit(), nullptr);
  pool.deallocate(h);
  EXPECT_EQ(pool.current_usage().pending(), 1_KiB);
  EXPECT_EQ(pool.provider().calls().record, 1u);
  pool.provider().hold_events(false);
  void* const p = pool.allocate(1_KiB);
  EXPECT_EQ(pool.current_usage().pending(), 0u);
  pool.deallocate(p);
}

TEST(block_handle, counts_oversize_blocks) {
  pool_type pool;
  pool.policies().split.max = 32_MiB;
  const block_handle h = pool.allocate_by_handle(64_MiB);
  EXPECT_TRUE(pool.record_stream(h, stream_id{1}));
  EXPECT_EQ(pool.statistics().oversize_allocations.current, 1);
  pool.deallocate(h);
  EXPECT_EQ(pool.statistics().oversize_allocations.current, 0);
}

TEST(block_handle_death, names_a_second_free) {
  pool_type pool;
  const block_handle h = pool.allocate_by_handle(1_KiB);
  const block_handle keeps_the_description = pool.allocate_by_handle(1_KiB);
  pool.deallocate(h);
  EXPECT_DEATH(pool.deallocate(h), "not the handle of a live block");
  pool.deallocate(keeps_the_description);
}

TEST(block_handle_death, names_a_second_free_of_a_block_that_was_merged) {
  pool_type pool;
  const block_handle h = pool.allocate_by_handle(1_KiB);
  ASSERT_TRUE(pool.record_stream(h, stream_id{0}));
  pool.deallocate(h);
  EXPECT_DEATH(pool.deallocate(h), "not the handle of a live block");
  EXPECT_STREQ(pool.audit(), nullptr);
}

TEST(block_handle, decides_as_an_address_does) {
  pool_type by_address;
  pool_type by_handle;
  std::mt19937_64 random(3);
  std::vector<void*> addresses;
  std::vector<block_handle> handles;
  for (int i = 0; i < 20'000; ++i) {
    if (addresses.size() < 80 && random() % 2 == 0) {
      const std::size_t bytes = 1 + random() % 4'000'000;
      addresses.push_back(by_address.allocate(bytes));
      handles.push_back(by_handle.allocate_by_handle(bytes));
      ASSERT_EQ(addresses.back(), handles.back().data());
    } else if (!addresses.empty()) {
      const std::size_t at = random() % addresses.size();
      by_address.deallocate(addresses[at]);
      by_handle.deallocate(handles[at]);
      addresses.erase(addresses.begin() + static_cast<std::ptrdiff_t>(at));
      handles.erase(handles.begin() + static_cast<std::ptrdiff_t>(at));
    }
    ASSERT_EQ(by_address.current_usage(), by_handle.current_usage());
  }
  ASSERT_STREQ(by_handle.audit(), nullptr);
  for (void* p : addresses) by_address.deallocate(p);
  for (block_handle h : handles) by_handle.deallocate(h);
}

TEST(block_freed_at_once, is_counted_and_found_in_between) {
  pool_type pool;
  void* const kept = pool.allocate(1_MiB);
  void* const p = pool.allocate(300);
  EXPECT_EQ(pool.current_usage().allocated, 1_MiB + 512);
  EXPECT_EQ(pool.current_usage().requested, 1_MiB + 300);
  pool.deallocate(p, 300);
  void* const q = pool.allocate(300);
  EXPECT_EQ(q, p);
  EXPECT_EQ(pool.statistics().all.allocation.current, 2);
  EXPECT_EQ(pool.statistics().all.allocation.allocated, 3);
  EXPECT_STREQ(pool.audit(), nullptr);
  EXPECT_TRUE(pool.try_deallocate(q));
  EXPECT_FALSE(pool.try_deallocate(q));
  void* const r = pool.allocate(300);
  EXPECT_TRUE(pool.record_stream(r, stream_id{2}));
  pool.trim();
  EXPECT_EQ(pool.current_usage().allocated, 1_MiB + 512);
  pool.deallocate(r);
  pool.deallocate(kept);
}
TEST(block_freed_at_once, is_not_freed_by_null) {
  pool_type pool;
  EXPECT_FALSE(pool.try_deallocate(nullptr));
  pool.deallocate(pool.allocate(300));
  EXPECT_FALSE(pool.try_deallocate(nullptr));
  pool.trim();
  EXPECT_FALSE(pool.try_deallocate(nullptr));
  EXPECT_EQ(pool.statistics().all.allocation.freed, 1);
  EXPECT_EQ(pool.statistics().all.inactive_split_bytes.current, 0);
}
TEST(block_freed_at_once, is_checked_by_its_size) {
  pool_type pool;
  void* const p = pool.allocate(300);
  EXPECT_DEATH(pool.deallocate(p, 301), "not the requested size");
  pool.deallocate(p, 300);
  EXPECT_DEATH(pool.deallocate(p), "not the address of a live block");
}
TEST(block_freed_at_once, is_reported_in_order) {
  struct observer {
    std::vector<allocator_event::action> told;
    void on(const allocator_event& e) noexcept { told.push_back(e.what); }
  };
  using action = allocator_event::action;
  caching_allocator<pytorch<>, simulated_device, extension::observer<observer>> pool;
  pool.deallocate(pool.allocate(512));
  pool.deallocate(pool.allocate(512));
  const std::vector<action> expected{action::segment_alloc,  action::alloc, action::free_requested,
                                     action::free_completed, action::alloc, action::free_requested,
                                     action::free_completed};
  pool.get<extension::observer<observer>>().with(
      [&](const observer& seen) { EXPECT_EQ(seen.told, expected); });
}
TEST(block_freed_at_once, is_released_if_the_recipe_evicts_at_free) {
  caching_allocator<passthrough, simulated_device> pool;
  pool.deallocate(pool.allocate(1_MiB));
  EXPECT_EQ(pool.current_usage().reserved, 0u);
  EXPECT_EQ(pool.provider().used(), 0u);
}
TEST(trim, evicts_completed_blocks_if_the_recipe_reports_so) {
  caching_allocator<passthrough, simulated_device> pool;
  void* const p = pool.allocate(5_MiB);
  (void)pool.record_stream(p, stream_id{1});
  pool.provider().hold_events(true);
  pool.deallocate(p);
  EXPECT_EQ(pool.current_usage().pending(), 5_MiB);
  pool.trim(1_GiB);
  EXPECT_EQ(pool.current_usage().reserved, 0u);
}

}  // namespace
