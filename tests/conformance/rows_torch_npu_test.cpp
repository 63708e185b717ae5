// SPDX-License-Identifier: Apache-2.0
// torch_npu's column of the compatibility matrix, row by row.
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/caching_allocator.hpp>
#include <tessera/concurrent/locked.hpp>
#include <tessera/concurrent/per_stream.hpp>
#include <tessera/extension/observer.hpp>
#include <tessera/interop/erase_stream.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/recipe/torch_npu.hpp>

namespace {

using namespace tessera;
using torch_npu_settings = config::torch_npu::settings;

using interop::erase_stream;
using native = caching_allocator<torch_npu_family::native, simulated_npu>;
using expandable = caching_allocator<torch_npu_family::expandable, simulated_npu>;

struct events {
  std::vector<allocator_event>* seen;
  void on(const allocator_event& e) const noexcept { seen->push_back(e); }
};

std::uintptr_t at(const void* p) { return reinterpret_cast<std::uintptr_t>(p); }

/// The first request of a new allocator: whether its segment is split, or serves whole.
void expect_first(std::size_t bytes, std::size_t block, std::size_t reserved,
                  const torch_npu_settings& settings = {}) {
  native pool{simulated_npu{}, torch_npu_family::native::configured(settings)};
  ASSERT_NE(pool.try_allocate(bytes), nullptr);
  EXPECT_EQ(pool.current_usage().allocated, block) << bytes;
  EXPECT_EQ(pool.current_usage().reserved, reserved) << bytes;
  EXPECT_EQ(pool.current_usage().requested, bytes);
  EXPECT_EQ(pool.statistics().pool[reserved == 2_MiB ? 0 : 1].segment.current, 1) << bytes;
  EXPECT_EQ(pool.statistics().all.inactive_split.current, block < reserved ? 1 : 0) << bytes;
  EXPECT_EQ(pool.statistics().all.inactive_split_bytes.current, std::int64_t(reserved - block)) << bytes;
  EXPECT_STREQ(pool.audit(), nullptr);
}
/// The same for the size of the block alone.
std::size_t block_under(const divisions& roundup, std::size_t bytes) {
  return torch_npu_family::native::configured({.roundup = roundup}).rounding.block_size(bytes);
}

TEST(torch_row, n001_npu_request_0_is_null_and_counts_nothing) {
  native pool;
  EXPECT_EQ(pool.allocate(0), nullptr);
  EXPECT_EQ(pool.statistics().all.allocation.allocated, 0);
  EXPECT_EQ(pool.statistics().all.segment.allocated, 0);
  EXPECT_EQ(pool.statistics().num_ooms, 0u);
  EXPECT_EQ(pool.provider().calls().acquire, 0u);
}
TEST(torch_row, n002_npu_request_1_B) { expect_first(1, 512, 2_MiB); }
TEST(torch_row, n003_npu_request_480_B_is_the_last_in_512) { expect_first(480, 512, 2_MiB); }
TEST(torch_row, n004_npu_request_481_B_and_512_B_take_1024) {
  expect_first(481, 1024, 2_MiB);
  expect_first(512, 1024, 2_MiB);
}
TEST(torch_row, n005_npu_request_513_B) { expect_first(513, 1024, 2_MiB); }
TEST(torch_row, n006_npu_request_1025_B) { expect_first(1025, 1536, 2_MiB); }
TEST(torch_row, n007_npu_256_floats_are_1536_active_bytes) {
  native pool;
  void* const p = pool.allocate(1024);
  EXPECT_EQ(pool.statistics().all.active_bytes.current, 1536);
  pool.deallocate(p);
  pool.trim();
  EXPECT_EQ(pool.statistics().all.active_bytes.freed, 1536);
  EXPECT_EQ(pool.statistics().all.active_bytes.current, 0);
}
TEST(torch_row, n008_npu_request_1M_less_32_B_is_small) { expect_first(1_MiB - 32, 1_MiB, 2_MiB); }
TEST(torch_row, n009_npu_request_1M_less_31_B_is_large) { expect_first(1_MiB - 31, 1_MiB + 512, 20_MiB); }
TEST(torch_row, n010_npu_request_1M_is_large) { expect_first(1_MiB, 1_MiB + 512, 20_MiB); }
TEST(torch_row, n011_npu_request_1M_and_1_B) { expect_first(1_MiB + 1, 1_MiB + 512, 20_MiB); }
TEST(torch_row, n012_npu_three_requests_of_7M_take_one_one_and_two_segments) {
  native pool;
  for (std::int64_t segments : {1, 1, 2}) {
    ASSERT_NE(pool.try_allocate(7_MiB), nullptr);
    EXPECT_EQ(pool.statistics().all.segment.current, segments);
  }
}
TEST(torch_row, n013_npu_request_5M) { expect_first(5_MiB, 5_MiB + 512, 20_MiB); }
TEST(torch_row, n014_npu_request_10M_less_512_B_has_a_segment_of_10M) {
  expect_first(10_MiB - 512, 10_MiB, 10_MiB);
}
TEST(torch_row, n015_npu_request_10M_less_544_B) { expect_first(10_MiB - 544, 10_MiB - 512, 20_MiB); }
TEST(torch_row, n016_npu_request_10M_has_a_segment_of_12M) { expect_first(10_MiB, 10_MiB + 512, 12_MiB); }
TEST(torch_row, n017_npu_request_10M_and_1_B) { expect_first(10_MiB + 1, 10_MiB + 512, 12_MiB); }
TEST(torch_row, n018_npu_request_19M_takes_20M_whole) { expect_first(19_MiB, 20_MiB, 20_MiB); }
TEST(torch_row, n019_npu_request_18_5M_is_split_off) {
  expect_first(18_MiB + 512_KiB, 18_MiB + 512_KiB + 512, 20_MiB);
}
TEST(torch_row, n020_npu_request_33M_takes_34M_whole) { expect_first(33_MiB, 34_MiB, 34_MiB); }
TEST(torch_row, n021_npu_40M_floats_are_split_off_162M) { expect_first(160_MiB, 160_MiB + 512, 162_MiB); }
TEST(torch_row, n022_npu_64M_leave_66M_from_which_63_5M_are_split_off) {
  native pool;
  void* const p = pool.allocate(64_MiB);
  EXPECT_EQ(pool.current_usage().allocated, 64_MiB + 512);
  EXPECT_EQ(pool.current_usage().reserved, 66_MiB);
  pool.deallocate(p);
  EXPECT_EQ(pool.allocate(63_MiB + 512_KiB), p);
  EXPECT_EQ(pool.current_usage().allocated, 63_MiB + 512_KiB + 512);
  EXPECT_EQ(pool.current_usage().reserved, 66_MiB);
}
TEST(torch_row, n023_npu_a_freed_5M_block_merges_with_its_rest) {
  native pool;
  pool.deallocate(pool.allocate(5_MiB));
  EXPECT_EQ(pool.current_usage().cached, 20_MiB);
  EXPECT_EQ(pool.statistics().all.inactive_split.current, 0);
  EXPECT_EQ(pool.statistics().all.inactive_split_bytes.current, 0);
}
TEST(torch_row, n024_npu_emptying_the_cache_ends_with_segment_free) {
  std::vector<allocator_event> seen;
  caching_allocator<torch_npu_family::native, simulated_npu, extension::observer<events>> pool{
      {}, {}, extension::observer<events>{{&seen}}};
  pool.deallocate(pool.allocate(5_MiB));
  pool.trim();
  EXPECT_EQ(pool.current_usage().reserved, 0u);
  EXPECT_EQ(seen.back().what, allocator_event::action::segment_free);
  EXPECT_EQ(seen.back().bytes, 20_MiB);
}
TEST(torch_row, n025_npu_a_live_small_block_keeps_its_segment) {
  native pool;
  void* const p = pool.allocate(1);
  pool.deallocate(pool.allocate(5_MiB));
  pool.trim();
  EXPECT_EQ(pool.current_usage().reserved, 2_MiB);
  pool.deallocate(p);
}
TEST(torch_row, n026_npu_800000000_GiB_are_too_much) {
  native pool;
  EXPECT_THROW((void)pool.allocate(800'000'000 * 1_GiB), out_of_memory);
  EXPECT_EQ(pool.statistics().num_ooms, 1u);
}
TEST(torch_row, n027_npu_1_EiB_is_refused_before_anything_is_tried) {
  native pool;
  EXPECT_THROW((void)pool.allocate(std::size_t{1} << 60), out_of_memory);
  EXPECT_EQ(pool.statistics().num_ooms, 0u);
  EXPECT_EQ(pool.provider().calls().acquire, 0u);
}

// [64:8,128:2,256:2,512:2,1024:1,>:1]
constexpr divisions five_sizes{8, 8, 8, 8, 8, 8, 8, 2, 2, 2, 1, 1, 1, 1, 1, 1};
// [8:1,64:4,128:8,256:2,>:16]
constexpr divisions with_a_gap{1, 1, 1, 1, 0, 0, 4, 8, 2, 16, 16, 16, 16, 16, 16, 16};

TEST(torch_row, n028_npu_four_divisions_of_84M) { EXPECT_EQ(block_under(divisions::all(4), 84_MiB), 96_MiB); }
TEST(torch_row, n029_npu_listed_divisions_of_84M) { EXPECT_EQ(block_under(five_sizes, 84_MiB), 88_MiB); }
TEST(torch_row, n030_npu_listed_divisions_of_400M) { EXPECT_EQ(block_under(five_sizes, 400_MiB), 512_MiB); }
TEST(torch_row, n033_npu_listed_divisions_with_a_gap) {
  EXPECT_EQ(block_under(with_a_gap, 65_MiB), 80_MiB);
  EXPECT_EQ(block_under(with_a_gap, 200_MiB), 208_MiB);
  EXPECT_EQ(block_under(with_a_gap, 510_MiB), 512_MiB);
  EXPECT_EQ(block_under(with_a_gap, 513_MiB), 544_MiB);
}
TEST(torch_row, n034_npu_in_the_gap_33M_are_rounded_plainly) {
  EXPECT_EQ(block_under(with_a_gap, 33_MiB), 33_MiB + 512);
  expect_first(33_MiB, 34_MiB, 34_MiB, {.roundup = with_a_gap});
}
TEST(torch_row, n035_npu_four_divisions_make_80M_of_64M) {
  EXPECT_EQ(block_under(divisions::all(4), 64_MiB), 80_MiB);
}
TEST(torch_row, n036_npu_four_divisions_of_64M_and_1_B) {
  EXPECT_EQ(block_under(divisions::all(4), 64_MiB + 1), 80_MiB);
}
TEST(torch_row, n037_npu_four_divisions_leave_1200_B_plain) {
  EXPECT_EQ(block_under(divisions::all(4), 1200), 1536u);
}
TEST(torch_row, n038_npu_four_divisions_of_2048_B) {
  EXPECT_EQ(block_under(divisions::all(4), 2048), 2560u);
  EXPECT_EQ(block_under(divisions::all(4), 2049), 2560u);
}
TEST(torch_row, n039_npu_four_divisions_make_1M_large) {
  expect_first(1_MiB, 1_MiB + 256_KiB, 20_MiB, {.roundup = divisions::all(4)});
}

TEST(torch_row, n076_npu_its_own_stream_recorded_keeps_a_block_pending) {
  native pool;
  void* const p = pool.allocate(5_MiB, stream_id{3});
  ASSERT_TRUE(pool.record_stream(p, stream_id{3}));
  pool.provider().submit(stream_id{3}, 1'000'000'000);
  pool.deallocate(p);
  EXPECT_EQ(pool.current_usage().pending(), 5_MiB + 512);
  EXPECT_NE(pool.allocate(5_MiB, stream_id{3}), p);
  pool.provider().advance(1'000'000'000);
  EXPECT_EQ(pool.allocate(5_MiB, stream_id{3}), p);
}
TEST(torch_row, n077_npu_a_recorded_block_is_reused_once_its_event_completes) {
  native pool;
  void* const p = pool.allocate(5_MiB);
  ASSERT_TRUE(pool.record_stream(p, stream_id{1}));
  pool.provider().submit(stream_id{1}, 1'000'000'000);
  pool.deallocate(p);
  pool.provider().synchronize(stream_id{1});
  EXPECT_EQ(pool.allocate(5_MiB), p);
}
TEST(torch_row, n078_npu_lazy_reclaim_polls_first_once_513_events_wait) {
  for (const std::size_t waiting : {512u, 513u}) {
    native pool{simulated_npu{}, torch_npu_family::native::configured({.multi_stream_lazy_reclaim = true})};
    void* const room = pool.allocate(3_MiB);  // 17 MiB next to it stay free
    void* const p = pool.allocate(2_MiB);
    std::vector<void*> others;
    for (std::size_t i = 1; i < waiting; ++i) others.push_back(pool.allocate(1_KiB));
    others.push_back(p);
    for (void* const q : others) {
      ASSERT_TRUE(pool.record_stream(q, stream_id{1}));
      pool.deallocate(q);
    }
    EXPECT_EQ(pool.provider().calls().query, 0u);
    void* const next = pool.allocate(2_MiB);
    EXPECT_EQ(next == p, waiting == 513)
        << "their events have completed, but no query was made while 512 waited";
    EXPECT_EQ(pool.provider().calls().query > 0, waiting == 513);
    pool.deallocate(room);
  }
}

TEST(torch_row, n097_npu_segment_size_mb_128_maps_128M) {
  expandable pool{simulated_npu{}, torch_npu_family::expandable::configured(
                                       {.expandable_segments = true, .segment_size = 128_MiB})};
  ASSERT_NE(pool.try_allocate(8_MiB), nullptr);
  EXPECT_EQ(pool.current_usage().reserved, 128_MiB);
}
TEST(torch_row, n098_npu_large_segment_size_mb_counts_before_segment_size_mb) {
  expandable pool{simulated_npu{},
                  torch_npu_family::expandable::configured(
                      {.large_segment_size = 100_MiB, .expandable_segments = true, .segment_size = 50_MiB})};
  ASSERT_NE(pool.try_allocate(5_MiB), nullptr);
  EXPECT_EQ(pool.current_usage().reserved, 100_MiB);
}
TEST(torch_row, n099_npu_large_segment_size_mb_50) {
  expect_first(5_MiB, 5_MiB + 512, 50_MiB, {.large_segment_size = 50_MiB});
}
TEST(torch_row, n100_npu_only_whole_free_pages_are_unmapped) {
  expandable pool;
  void* const kept = pool.allocate(5_MiB - 512);
  void* const rest = pool.allocate(35_MiB - 512);
  ASSERT_EQ(at(rest), at(kept) + 5_MiB);
  EXPECT_EQ(pool.current_usage().reserved, 40_MiB);
  pool.deallocate(rest);
  pool.trim();
  EXPECT_EQ(pool.current_usage().reserved, 20_MiB);
  EXPECT_EQ(pool.current_usage().cached, 15_MiB);
  EXPECT_EQ(pool.allocate(15_MiB - 512), rest);
  EXPECT_EQ(pool.current_usage().reserved, 20_MiB);
}
TEST(torch_row, n101_npu_pages_of_a_huge_block_are_unmapped_and_counted) {
  expandable pool;
  void* const p = pool.allocate(10_GiB);
  const std::int64_t peak = pool.statistics().all.reserved_bytes.current;
  pool.deallocate(p);
  pool.trim();
  EXPECT_EQ(pool.current_usage().reserved, 0u);
  EXPECT_EQ(pool.provider().used(), 0u) << "torch_npu keeps the physical memory here and books it as gone";
  EXPECT_EQ(pool.statistics().all.reserved_bytes.peak, peak);
  pool.deallocate(pool.allocate(10_GiB));
  pool.trim();
  EXPECT_EQ(pool.current_usage().reserved, 0u);
  EXPECT_STREQ(pool.audit(), nullptr);
}
TEST(torch_row, n103_npu_a_block_that_cannot_grow_is_preferred) {
  expandable pool;
  void* const low = pool.allocate(12_MiB - 512);
  void* const wall = pool.allocate(8_MiB - 512);
  void* const last = pool.allocate(10_MiB - 512);
  pool.deallocate(low);
  ASSERT_EQ(at(last), at(wall) + 8_MiB) << "behind it are 10 MiB free, and then no memory";
  EXPECT_EQ(pool.current_usage().cached, 22_MiB);
  EXPECT_EQ(pool.allocate(8_MiB - 512), low);
  EXPECT_STREQ(pool.audit(), nullptr);
}
TEST(torch_row, n104_npu_a_large_block_begins_at_the_next_multiple_of_16K) {
  expandable pool;
  void* const low = pool.allocate(480);  // the small pool has a range of its own
  void* const first = pool.allocate(4_MiB);
  ASSERT_EQ(at(first) % 16384, 0u);
  void* const second = pool.allocate(2_MiB);
  EXPECT_EQ(at(second), at(first) + 4_MiB + 16_KiB) << "4 MiB and 512 B are taken, 15872 B stay free";
  EXPECT_EQ(pool.current_usage().allocated, 512 + 4_MiB + 512 + 2_MiB + 512);
  // below 2 MiB any address is allowed, but the block does not fit in there
  void* const gap = pool.allocate(1_MiB);
  EXPECT_EQ(at(gap), at(second) + 2_MiB + 512);
  for (void* p : {low, first, second, gap}) pool.deallocate(p);
  EXPECT_STREQ(pool.audit(), nullptr);
}

/// Gives two segments at once, the higher address first.
class downwards : public simulated_npu {
 public:
  [[nodiscard]] void* acquire(std::size_t bytes, page_kind kind = page_kind::normal) noexcept {
    if (lower_ != nullptr) return std::exchange(lower_, nullptr);
    lower_ = simulated_npu::acquire(bytes, kind);
    return simulated_npu::acquire(bytes, kind);
  }

 private:
  void* lower_ = nullptr;
};
TEST(torch_row, n124_npu_of_equal_blocks_the_lower_address_is_chosen) {
  caching_allocator<torch_npu_family::native, downwards> pool;
  void* const x = pool.allocate(40_MiB);
  void* const y = pool.allocate(40_MiB);
  ASSERT_LT(at(y), at(x));
  pool.deallocate(x);
  pool.deallocate(y);
  EXPECT_EQ(pool.allocate(40_MiB), y);
}

// WorkHCCL::synchronize erases the stream of the collective.
TEST(torch_row, n125_npu_an_erased_stream_keeps_no_block_pending) {
  locked<native> pool;
  void* const p = pool.allocate(5_MiB, stream_id{3});
  for (const stream_id s : {stream_id{7}, stream_id{8}}) {
    ASSERT_TRUE(pool.record_stream(p, s));
    pool.visit_provider([s](auto& npu) { npu.submit(s, 1'000'000'000); });
  }
  EXPECT_FALSE(erase_stream(pool, p, stream_id{9})) << "it was never recorded";
  EXPECT_FALSE(erase_stream(pool, &pool, stream_id{7}));
  EXPECT_FALSE(erase_stream(pool, nullptr, stream_id{7}));
  EXPECT_TRUE(erase_stream(pool, p, stream_id{7}));
  EXPECT_FALSE(erase_stream(pool, p, stream_id{7}));
  ASSERT_TRUE(pool.record_stream(p, stream_id{7})) << "a later use is recorded again";
  EXPECT_TRUE(erase_stream(pool, p, stream_id{7}));
  EXPECT_TRUE(erase_stream(pool, p, stream_id{8}));
  EXPECT_EQ(pool.visit_provider([](auto& npu) { return npu.calls().record; }), 0u);
  pool.deallocate(p);
  EXPECT_EQ(pool.current_usage().pending(), 0u);
  EXPECT_EQ(pool.allocate(5_MiB, stream_id{3}), p);
  EXPECT_STREQ(pool.audit(), nullptr);
}
TEST(torch_row, n125_npu_an_erased_stream_keeps_no_block_pending_in_arenas) {
  per_stream<native> arenas;
  void* const p = arenas.allocate(5_MiB, stream_id{3});
  ASSERT_TRUE(arenas.record_stream(p, stream_id{7}));
  EXPECT_TRUE(erase_stream(arenas, p, stream_id{7}));
  EXPECT_FALSE(erase_stream(arenas, &arenas, stream_id{7}));
  arenas.deallocate(p);
  EXPECT_EQ(arenas.current_usage().pending(), 0u);
}
TEST(torch_row, n126_npu_the_other_recorded_streams_keep_it_pending) {
  native pool;
  void* const p = pool.allocate(5_MiB);
  for (std::uint64_t s = 1; s <= 3; ++s) {
    ASSERT_TRUE(pool.record_stream(p, stream_id{s}));
    pool.provider().submit(stream_id{s}, s * 1'000'000);
  }
  EXPECT_TRUE(erase_stream(pool, p, stream_id{3}));
  EXPECT_TRUE(erase_stream(pool, p, stream_id{1}));
  pool.deallocate(p);
  EXPECT_FALSE(erase_stream(pool, p, stream_id{2})) << "a freed block has no address";
  EXPECT_EQ(pool.provider().calls().record, 1u);
  EXPECT_EQ(pool.current_usage().pending(), 5_MiB + 512);
  pool.provider().advance(2'000'000);
  EXPECT_EQ(pool.allocate(5_MiB), p);
  EXPECT_STREQ(pool.audit(), nullptr);
}

}  // namespace
