// SPDX-License-Identifier: Apache-2.0
// The behaviour of PyTorch's expandable segments, and additions of the library. The numbers are rows of the
// compatibility matrix.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/extension/observer.hpp>
#include <tessera/interop/memory_fraction.hpp>
#include <tessera/provider/adaptor.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/recipe/paddle.hpp>
#include <tessera/tessera.hpp>

namespace {

using namespace tessera;

template <typename... Policy>
using expandable = caching_allocator<with<pytorch_family::expandable, Policy...>, simulated_device>;

struct events {
  std::vector<allocator_event>* seen;
  void on(const allocator_event& e) const noexcept { seen->push_back(e); }
};

std::uintptr_t at(const void* p) { return reinterpret_cast<std::uintptr_t>(p); }

simulated_device small_device(std::size_t capacity) {
  return simulated_device{simulated_device::options{.capacity = capacity}};
}

TEST(pytorch_expandable, row_97_the_size_of_pages_can_be_set) {
  expandable<> pool;
  pool.policies().growth.large = 128_MiB;
  (void)pool.allocate(8_MiB);
  EXPECT_EQ(pool.current_usage().reserved, 128_MiB);
}

TEST(pytorch_expandable, row_103_a_block_that_cannot_grow_is_taken_before_one_that_can) {
  expandable<> pool;
  void* const low = pool.allocate(12_MiB);
  (void)pool.allocate(8_MiB);
  void* const high = pool.allocate(10_MiB);  // after it come 10 MiB free and then unmapped addresses
  pool.deallocate(low);
  pool.deallocate(high);
  // 12 MiB that cannot grow, and 20 MiB that can. Both would serve, and the first is the better fit here,
  EXPECT_EQ(pool.allocate(8_MiB), low);
  pool.deallocate(low);
  void* const rest = pool.allocate(11_MiB, stream_id{0});
  EXPECT_EQ(rest, low);
  pool.deallocate(rest);
  // and also if the one that can grow is smaller.
  (void)pool.allocate(10_MiB);  // in the 12 MiB
  (void)pool.allocate(2_MiB);
  void* const tail = pool.allocate(10_MiB);
  EXPECT_EQ(tail, high);
  EXPECT_STREQ(pool.audit(), nullptr);
}

TEST(pytorch_expandable, row_104_large_blocks_can_begin_at_aligned_addresses) {
  expandable<> pool;
  pool.policies().growth.alignment = 16_KiB;
  void* const first = pool.allocate(3_MiB + 512);
  void* const second = pool.allocate(2_MiB);
  EXPECT_EQ(at(second) % 16_KiB, 0u);
  EXPECT_EQ(at(second), at(first) + 3_MiB + 16_KiB);
  EXPECT_STREQ(pool.audit(), nullptr);
  EXPECT_EQ(pool.current_usage().allocated, 5_MiB + 512);
  EXPECT_EQ(pool.current_usage().cached, 15_MiB - 512) << "what was left out is free";
  void* const below_2_MiB = pool.allocate(2_MiB - 512);
  EXPECT_EQ(at(below_2_MiB), at(second) + 2_MiB) << "smaller blocks begin anywhere";
  pool.deallocate(second);
  pool.deallocate(first);
  pool.deallocate(below_2_MiB);
  EXPECT_STREQ(pool.audit(), nullptr);
  EXPECT_EQ(pool.allocate(20_MiB), first) << "and all merges again";
}

TEST(pytorch_expandable, an_aligned_block_that_comes_back_at_once_leaves_no_trace) {
  expandable<> pool;
  pool.policies().growth.alignment = 16_KiB;
  void* const first = pool.allocate(3_MiB + 512);
  void* const second = pool.allocate(2_MiB);
  pool.deallocate(second);
  EXPECT_STREQ(pool.audit(), nullptr);
  EXPECT_EQ(pool.allocate(17_MiB - 512 - 15872, stream_id{0}), second);
  pool.deallocate(first);
  EXPECT_STREQ(pool.audit(), nullptr);
}

// A map whose last page does not fit maps nothing.
TEST(pytorch_expandable, a_map_that_fails_half_way_leaves_nothing) {
  expandable<> pool{small_device(50_MiB)};
  EXPECT_EQ(pool.try_allocate(60_MiB), nullptr);
  EXPECT_EQ(pool.current_usage().reserved, 0u);
  EXPECT_EQ(pool.provider().used(), 0u);
  EXPECT_NE(pool.try_allocate(40_MiB), nullptr);
  EXPECT_EQ(pool.current_usage().reserved, 40_MiB);
  EXPECT_STREQ(pool.audit(), nullptr);
}

TEST(pytorch_expandable, idle_pages_of_one_pool_make_room_for_the_other) {
  expandable<> pool{small_device(40_MiB)};
  void* const large = pool.allocate(40_MiB);
  pool.deallocate(large);
  EXPECT_NE(pool.try_allocate(1), nullptr);
  EXPECT_EQ(pool.current_usage().reserved, 2_MiB);
}

TEST(pytorch_expandable, a_range_is_released_with_its_last_page) {
  std::vector<allocator_event> seen;
  caching_allocator<pytorch_family::expandable, simulated_device, extension::observer<events>> pool{
      small_device(1_GiB), {}, extension::observer<events>{{&seen}}};
  void* const p = pool.allocate(30_MiB);
  pool.deallocate(p);
  seen.clear();
  pool.trim();
  ASSERT_EQ(seen.size(), 3u);
  EXPECT_EQ(seen[0].what, allocator_event::action::segment_unmap);
  EXPECT_EQ(seen[0].bytes, 20_MiB);
  EXPECT_EQ(seen[2].what, allocator_event::action::range_release);
  EXPECT_EQ(seen[2].bytes, 1160_MiB) << "1 1/8 of the capacity, in whole pages";
  EXPECT_EQ(seen[2].address, at(p));
}

TEST(pytorch_expandable, pages_are_not_taken_from_under_a_stream) {
  expandable<> pool{small_device(1_GiB)};
  void* const p = pool.allocate(30_MiB, stream_id{5});
  pool.provider().submit(stream_id{5}, 7'000'000);
  pool.deallocate(p);
  const auto before = pool.provider().now_ns();
  pool.trim();
  EXPECT_GE(pool.provider().now_ns(), before + 7'000'000);
  EXPECT_EQ(pool.current_usage().reserved, 0u);
}

TEST(pytorch_expandable, a_request_larger_than_a_range_is_refused) {
  expandable<> pool{small_device(100_MiB)};
  EXPECT_EQ(pool.try_allocate(200_MiB), nullptr);
  EXPECT_EQ(pool.try_allocate(max_request), nullptr);
  EXPECT_STREQ(pool.audit(), nullptr);
}

// Each of the two tries reserves a range, as in PyTorch.
TEST(pytorch_expandable, a_range_that_is_too_small_for_its_request_serves_later_ones) {
  std::vector<allocator_event> seen;
  caching_allocator<pytorch_family::expandable, simulated_device, extension::observer<events>> pool{
      small_device(100_MiB), {}, extension::observer<events>{{&seen}}};
  EXPECT_EQ(pool.try_allocate(200_MiB), nullptr);
  std::vector<std::uintptr_t> ranges;
  for (const allocator_event& e : seen) {
    if (e.what == allocator_event::action::range_reserve) ranges.push_back(e.address);
  }
  ASSERT_EQ(ranges.size(), 2u);
  EXPECT_EQ(at(pool.allocate(5_MiB)), (std::min)(ranges[0], ranges[1]));
  EXPECT_STREQ(pool.audit(), nullptr);
}

TEST(pytorch_expandable, pages_of_several_sizes_share_a_range_if_pools_do) {
  expandable<pool_together> pool{small_device(1_GiB)};
  std::vector<void*> held;
  for (std::size_t i = 0; i < 12; ++i) {
    held.push_back(pool.allocate(i % 2 == 0 ? 1_MiB : 3_MiB));
    ASSERT_STREQ(pool.audit(), nullptr);
  }
  for (std::size_t i = 0; i < held.size(); i += 2) pool.deallocate(held[i]);
  pool.trim();
  (void)pool.allocate(50_MiB);
  EXPECT_STREQ(pool.audit(), nullptr);
}

TEST(pytorch_expandable, a_page_is_mapped_only_at_valid_addresses) {
  expandable<pool_together, prefer_pages<page_preference::huge_first>, grow_by_mapping<256_KiB, 6_MiB>,
             recover_never>
      pool{simulated_device{simulated_device::options{.capacity = 64_MiB, .page_granularity = 64_KiB}}};
  std::vector<void*> small;
  for (int i = 0; i < 8; ++i) small.push_back(pool.allocate(128_KiB));
  pool.deallocate(small[0]);
  pool.deallocate(small[1]);
  pool.trim();  // 256 KiB at a multiple of 2 MiB are unmapped, and everything from 1 MiB after it on
  for (std::size_t i = 2; i < 8; ++i) pool.deallocate(small[i]);
  EXPECT_NE(pool.try_allocate(5_MiB), nullptr) << pool.provider().last_error();
  EXPECT_STREQ(pool.provider().last_error(), "");
  EXPECT_STREQ(pool.audit(), nullptr);
}

TEST(pytorch_expandable, a_page_ends_at_the_next_mapping) {
  expandable<> pool;
  pool.policies().growth.large = 10_MiB;
  void* const low = pool.allocate(10_MiB);
  void* const high = pool.allocate(10_MiB);
  pool.deallocate(low);
  pool.trim();
  pool.policies().growth.large = 20_MiB;
  EXPECT_EQ(pool.try_allocate(8_MiB), low);
  EXPECT_EQ(pool.current_usage().reserved, 20_MiB);
  EXPECT_STREQ(pool.provider().last_error(), "");
  pool.deallocate(high);
  EXPECT_STREQ(pool.audit(), nullptr);
}

TEST(pytorch_expandable_death, invalid_settings_of_ranges_abort) {
  expandable<> pool;
  pool.policies().growth.large = 0;
  EXPECT_DEATH((void)pool.try_allocate(5_MiB), "mapping_unit is a multiple of min_alignment");
  pool.policies().growth.large = 20_MiB;
  pool.policies().growth.alignment = 96;
  EXPECT_DEATH((void)pool.try_allocate(5_MiB), "base_alignment is 1 or a multiple of min_alignment");
  pool.policies().growth.alignment = 0;
  EXPECT_NE(pool.try_allocate(5_MiB), nullptr) << "0 stands for none";
}

// The device has 20 MiB in all, of which 4 MiB became free when the allocator waited for the other stream.
TEST(pytorch_expandable, a_block_beside_a_hole_serves_that_became_free_in_recovery) {
  expandable<> pool{small_device(20_MiB)};
  (void)pool.allocate(16_MiB);
  void* const waits = pool.allocate(4_MiB);
  pool.provider().submit(stream_id{1}, 1'000'000);
  ASSERT_TRUE(pool.record_stream(waits, stream_id{1}));
  pool.deallocate(waits);
  EXPECT_EQ(pool.try_allocate(4_MiB), waits);
  EXPECT_EQ(pool.statistics().num_alloc_retries, 1u);
  EXPECT_EQ(pool.statistics().num_ooms, 0u);
  EXPECT_EQ(pool.provider().calls().map, 1u) << "nothing more is mapped";
  EXPECT_STREQ(pool.audit(), nullptr);
}
TEST(pytorch_expandable, a_block_beside_a_hole_serves_although_it_is_kept_for_larger_requests) {
  expandable<> pool;
  pool.policies().split.max = 32_MiB;
  void* const large = pool.allocate(60_MiB);
  pool.deallocate(large);
  EXPECT_EQ(pool.allocate(5_MiB), large) << "as what is mapped comes first in growth";
  EXPECT_EQ(pool.current_usage().reserved, 60_MiB);
  EXPECT_STREQ(pool.audit(), nullptr);
}

TEST(pytorch_expandable, large_blocks_are_split_and_stay_until_all_are_released) {
  using recipe = pytorch<"expandable_segments:True,max_split_size_mb:32,garbage_collection_threshold:0.5">;
  caching_allocator<recipe, simulated_device> pool{small_device(100_MiB)};
  ASSERT_TRUE(set_memory_fraction(pool, 1));
  pool.deallocate(pool.allocate(70_MiB));
  EXPECT_NE(pool.allocate(65_MiB), nullptr);
  EXPECT_EQ(pool.current_usage().allocated, 65_MiB) << "what is oversize is cut";
  void* const other = pool.allocate(20_MiB, stream_id{1});
  pool.deallocate(other);
  EXPECT_EQ(pool.provider().calls().unmap, 0u) << "nothing was collected above the threshold";
  EXPECT_EQ(pool.try_allocate(40_MiB, stream_id{2}), nullptr);
  EXPECT_EQ(pool.statistics().num_alloc_retries, 1u) << "oversize blocks do not go back one by one";
}

// Neither PyTorch nor torch_npu can combine these with expandable segments.
TEST(pytorch_expandable, idle_pages_above_a_threshold_are_released) {
  expandable<evict_idle_above<percent(50)>, grow_by_mapping<2_MiB, tunable(20_MiB), 100_MiB>> pool{
      small_device(1_GiB)};
  pool.deallocate(pool.allocate(1_MiB));
  void* const old = pool.allocate(40_MiB);
  void* const used = pool.allocate(20_MiB);
  pool.deallocate(old);
  for (int i = 0; i < 10; ++i) pool.deallocate(pool.allocate(1_MiB));
  EXPECT_EQ(pool.current_usage().reserved, 62_MiB);
  EXPECT_NE(pool.try_allocate(45_MiB), nullptr);
  EXPECT_EQ(pool.provider().calls().unmap, 2u)
      << "before growing past half of the limit, the idle pages went";
  EXPECT_STREQ(pool.audit(), nullptr);
  pool.deallocate(used);
}
TEST(pytorch_expandable, large_free_blocks_are_kept_for_large_requests) {
  expandable<> pool;
  pool.policies().split.max = 32_MiB;
  void* const large = pool.allocate(60_MiB);
  void* const wall = pool.allocate(20_MiB);
  pool.deallocate(large);
  void* const small = pool.allocate(5_MiB);
  EXPECT_TRUE(at(small) < at(large) || at(small) >= at(large) + 60_MiB) << "the 60 MiB stay whole";
  EXPECT_EQ(pool.allocate(50_MiB), large);
  EXPECT_STREQ(pool.audit(), nullptr);
  pool.deallocate(wall);
}

/// A device with few addresses for ranges.
class few_addresses : public provider_adaptor<simulated_device> {
 public:
  few_addresses(simulated_device& device, std::size_t addresses)
      : provider_adaptor(device), left_(addresses) {}
  [[nodiscard]] void* reserve(std::size_t bytes, std::size_t to) noexcept {
    void* const p = bytes <= left_ ? inner().reserve(bytes, to) : nullptr;
    left_ -= p != nullptr ? bytes : 0;
    return p;
  }
  bool unreserve(void* p, std::size_t bytes) noexcept {
    left_ += bytes;
    return inner().unreserve(p, bytes);
  }

 private:
  std::size_t left_;
};

template <typename Recipe>
void serve_many_streams(std::uint64_t streams) {
  simulated_device device;  // of 80 GiB
  caching_allocator<Recipe, few_addresses> pool(few_addresses(device, std::size_t{1} << 46));
  for (std::uint64_t s = 1; s <= streams; ++s) {
    ASSERT_NE(pool.try_allocate(1_KiB, stream_id{s}), nullptr) << s;
    ASSERT_NE(pool.try_allocate(20_MiB, stream_id{s}), nullptr) << s;
  }
  ASSERT_NE(pool.try_allocate(20_GiB, stream_id{streams}), nullptr) << "by a further range";
  EXPECT_STREQ(pool.audit(), nullptr);
}
template <typename Recipe>
void reuse_addresses() {
  simulated_device device(simulated_device::options{.capacity = 1_GiB});
  caching_allocator<Recipe, few_addresses> pool(few_addresses(device, 100_MiB));
  void* const kept = pool.allocate(20_MiB);
  for (std::uint64_t s = 1; s <= 10; ++s) {
    void* const p = pool.try_allocate(12_MiB, stream_id{s});
    ASSERT_NE(p, nullptr) << s;
    pool.deallocate(p);
  }
  EXPECT_EQ(pool.try_allocate(90_MiB), nullptr);
  EXPECT_STREQ(pool.audit(), nullptr);
  pool.deallocate(kept);
}
TEST(addresses, suffice_for_many_streams) {
  serve_many_streams<pytorch_family::expandable>(370);
  serve_many_streams<stitched>(370);
  serve_many_streams<paddle_virtual_memory_v2>(110);
}
TEST(addresses, of_idle_memory_serve_others) {
  reuse_addresses<pytorch_family::expandable>();
  reuse_addresses<stitched>();
  reuse_addresses<paddle_virtual_memory_v2>();
}

}  // namespace
