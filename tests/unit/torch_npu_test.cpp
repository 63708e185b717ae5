// SPDX-License-Identifier: Apache-2.0
// The recipes that torch_npu's settings select. The rows of the compatibility matrix are in
// conformance/rows_torch_npu_test.cpp.
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/concurrent/locked.hpp>
#include <tessera/concurrent/per_stream.hpp>
#include <tessera/provider/adaptor.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/recipe/torch_npu.hpp>
#include <tessera/tessera.hpp>

namespace {

using namespace tessera;
using torch_npu_settings = config::torch_npu::settings;

using native = caching_allocator<torch_npu_family::native, simulated_npu>;
using expandable = caching_allocator<torch_npu_family::expandable, simulated_npu>;

template <typename Allocator>
Allocator made(const torch_npu_settings& settings, const simulated_device::options& device = {});
template <>
native made<native>(const torch_npu_settings& settings, const simulated_device::options& device) {
  return native{simulated_npu{device}, torch_npu_family::native::configured(settings)};
}
template <>
expandable made<expandable>(const torch_npu_settings& settings, const simulated_device::options& device) {
  return expandable{simulated_npu{device}, torch_npu_family::expandable::configured(settings)};
}

std::uintptr_t at(const void* p) { return reinterpret_cast<std::uintptr_t>(p); }

TEST(torch_npu, has_its_own_defaults) {
  constexpr torch_npu_settings none;
  EXPECT_TRUE(torch_npu_family::native::configured(none).rounding == torch_npu_family::native::rounding{});
  EXPECT_TRUE(torch_npu_family::native::configured(none).pages == policies<torch_npu_family::native>{}.pages);
  EXPECT_TRUE(torch_npu_family::native::configured(none).growth ==
              policies<torch_npu_family::native>{}.growth);
  EXPECT_TRUE(torch_npu_family::native::configured(none).streams ==
              policies<torch_npu_family::native>{}.streams);
  constexpr torch_npu_settings ranges{.expandable_segments = true};
  EXPECT_TRUE(torch_npu_family::expandable::configured(ranges).growth ==
              policies<torch_npu_family::expandable>{}.growth);
  EXPECT_EQ(torch_npu_family::expandable::configured(ranges).growth.base_alignment(2_MiB), 16_KiB);
}

TEST(torch_npu, every_setting_reaches_its_policy) {
  constexpr auto chosen = torch_npu_family::native::configured({.max_split_size = 32_MiB,
                                                                .max_non_split_rounding = 40_MiB,
                                                                .large_segment_size = 30_MiB,
                                                                .garbage_collection_threshold = percent(60),
                                                                .roundup = divisions::all(4),
                                                                .multi_stream_lazy_reclaim = true,
                                                                .memory_fraction = percent(50),
                                                                .throw_on_oom = true});
  static_assert(chosen.split.max.get() == 32_MiB && chosen.split.slack.get() == 40_MiB);
  static_assert(chosen.growth.large.get() == 30_MiB && chosen.growth.limit.on(1_GiB) == 512_MiB);
  static_assert(chosen.eviction.threshold.get() == percent(60));
  static_assert(chosen.rounding.inner.table.get() == divisions::all(4));
  static_assert(!chosen.streams.should_poll_events(512) && chosen.streams.should_poll_events(513));
  static_assert(chosen.recovery.steps(failure_reason::by_limit).count == 0);
}

TEST(torch_npu_death, settings_and_recipe_must_fit) {
  EXPECT_DEATH((void)torch_npu_family::native::configured({.expandable_segments = true}),
               "torch_npu_native::configured: settings for another recipe");
  EXPECT_DEATH((void)torch_npu_family::expandable::configured({}),
               "torch_npu_expandable::configured: settings for another recipe");
}

TEST(torch_npu, segments_are_in_pages_of_2_MiB_as_long_as_there_are_any) {
  auto pool = made<native>({}, {.page_granularity = 4_KiB, .huge_budget = 20_MiB});
  (void)pool.allocate(5_MiB);
  EXPECT_EQ(pool.provider().held().page_table_entries, 10u);
  (void)pool.allocate(1);
  EXPECT_EQ(pool.provider().held().page_table_entries, 10u + 512u) << "2 MiB in normal pages";
}

TEST(torch_npu, an_odd_segment_size_is_counted_in_whole_pages) {
  auto pool = made<native>({.large_segment_size = 21_MiB});
  (void)pool.allocate(5_MiB);
  EXPECT_EQ(pool.current_usage().reserved, 22_MiB);
  EXPECT_EQ(pool.provider().used(), 22_MiB);
}

TEST(torch_npu, page_size_1g_rounds_large_segments_to_1_GiB) {
  auto pool = made<native>({.huge_1g_pages = true});
  (void)pool.allocate(5_MiB);
  EXPECT_EQ(pool.current_usage().reserved, 1_GiB);
  EXPECT_EQ(pool.provider().held().page_table_entries, 1u);
  (void)pool.allocate(1_GiB);  // and 32 bytes
  EXPECT_EQ(pool.current_usage().reserved, 3_GiB);
  EXPECT_EQ(pool.provider().held().page_table_entries, 3u);
}

TEST(torch_npu, page_size_1g_leaves_small_requests_alone) {
  auto pool = made<native>({.huge_1g_pages = true});
  (void)pool.allocate(1_MiB - 32);
  EXPECT_EQ(pool.current_usage().reserved, 2_MiB);
  EXPECT_EQ(pool.provider().held().page_table_entries, 1u) << "one page of 2 MiB";
  (void)pool.allocate(1_MiB - 31);
  EXPECT_EQ(pool.current_usage().reserved, 2_MiB + 1_GiB);
}

TEST(torch_npu, page_size_1g_takes_smaller_pages_if_1_GiB_ones_fail) {
  auto pool = made<native>({.huge_1g_pages = true}, {.giant_budget = 1_GiB});
  (void)pool.allocate(5_MiB);
  (void)pool.allocate(1020_MiB);
  EXPECT_EQ(pool.current_usage().reserved, 2_GiB);
  EXPECT_EQ(pool.provider().held().page_table_entries, 1u + 512u);
  EXPECT_EQ(pool.statistics().num_alloc_retries, 0u) << "which is no want of memory";
}

TEST(torch_npu, page_size_1g_wins_over_other_segment_sizes) {
  auto pool = made<native>({.large_segment_size = 3_GiB, .huge_1g_pages = true});
  (void)pool.allocate(5_MiB);
  EXPECT_EQ(pool.current_usage().reserved, 1_GiB);
  auto ranges = made<expandable>({.large_segment_size = 100_MiB,
                                  .expandable_segments = true,
                                  .huge_1g_pages = true,
                                  .segment_size = 40_MiB});
  (void)ranges.allocate(5_MiB);
  EXPECT_EQ(ranges.current_usage().reserved, 1_GiB);
}

TEST(torch_npu, page_size_1g_is_the_page_of_large_ranges_alone) {
  auto pool = made<expandable>({.expandable_segments = true, .huge_1g_pages = true}, {.giant_budget = 1_GiB});
  (void)pool.allocate(1);
  EXPECT_EQ(pool.current_usage().reserved, 2_MiB);
  void* const first = pool.allocate(1000_MiB);
  EXPECT_EQ(pool.current_usage().reserved, 2_MiB + 1_GiB);
  EXPECT_EQ(pool.provider().held().page_table_entries, 2u);
  void* const second = pool.allocate(100_MiB);
  EXPECT_EQ(at(second), at(first) + 1000_MiB + 16_KiB);
  EXPECT_EQ(pool.provider().held().page_table_entries, 2u + 512u) << "the second page is in pieces of 2 MiB";
  EXPECT_STREQ(pool.audit(), nullptr);
}

TEST(torch_npu, pages_of_large_ranges_have_the_configured_size) {
  const auto page = [](const torch_npu_settings& settings) {
    auto pool = made<expandable>(settings);
    (void)pool.allocate(2_MiB);
    return pool.current_usage().reserved;
  };
  EXPECT_EQ(page({.expandable_segments = true}), 20_MiB);
  EXPECT_EQ(page({.expandable_segments = true, .segment_size = 40_MiB}), 40_MiB);
  EXPECT_EQ(page({.large_segment_size = 64_MiB, .expandable_segments = true}), 64_MiB);
  EXPECT_EQ(page({.large_segment_size = 64_MiB, .expandable_segments = true, .segment_size = 40_MiB}),
            64_MiB);
}

TEST(torch_npu, large_blocks_begin_at_configured_multiples_and_at_512_otherwise) {
  for (const std::size_t step : {0_KiB, 1_KiB, 3_KiB, 11_KiB, 16_KiB}) {
    auto pool = made<expandable>({.expandable_segments = true, .base_addr_aligned = step});
    std::vector<void*> held;
    for (std::size_t i = 0; i < 8; ++i) {
      held.push_back(pool.allocate(2_MiB + i * 700));
      EXPECT_EQ(at(held.back()) % (step == 0 ? 512 : step), 0u) << step;
    }
    ASSERT_STREQ(pool.audit(), nullptr);
    for (void* p : held) pool.deallocate(p);
    EXPECT_STREQ(pool.audit(), nullptr);
    pool.trim();
    EXPECT_EQ(pool.current_usage().reserved, 0u) << "what was left out has merged again";
  }
}
TEST(torch_npu, a_block_is_not_aligned_if_there_is_no_room) {
  auto pool = made<expandable>({.expandable_segments = true});
  void* const first = pool.allocate(15_MiB - 512);
  void* const second = pool.allocate(2_MiB);
  void* const third = pool.allocate(3_MiB - 1024);  // the rest, to the byte
  EXPECT_EQ(at(second) % 16_KiB, 0u);
  EXPECT_EQ(at(third), at(second) + 2_MiB + 512);
  EXPECT_EQ(pool.current_usage().reserved, 20_MiB);
  for (void* p : {first, second, third}) pool.deallocate(p);
}

TEST(torch_npu, lazy_reclaim_polls_events_before_it_acquires) {
  for (const bool lazy : {false, true}) {
    auto pool = made<native>({.multi_stream_lazy_reclaim = lazy});
    void* const p = pool.allocate(40_MiB);
    ASSERT_TRUE(pool.record_stream(p, stream_id{1}));
    pool.provider().submit(stream_id{1}, 1'000'000'000);
    pool.deallocate(p);
    void* const small = pool.allocate(1);
    EXPECT_EQ(pool.provider().calls().query, 1u) << "of the miss, which has a look in either case";
    pool.deallocate(small);
    pool.deallocate(pool.allocate(1));
    EXPECT_EQ(pool.provider().calls().query, lazy ? 1u : 2u);
    pool.provider().advance(1'000'000'000);
    EXPECT_EQ(pool.allocate(40_MiB), p);
    EXPECT_EQ(pool.provider().calls().query, lazy ? 2u : 3u);
    EXPECT_EQ(pool.provider().calls().acquire, 2u);
    EXPECT_EQ(pool.current_usage().pending(), 0u);
  }
}

TEST(torch_npu, lazy_reclaim_searches_once_more_after_events_complete) {
  auto pool = made<native>({.multi_stream_lazy_reclaim = true});
  std::vector<void*> held;
  for (int i = 0; i < 600; ++i) held.push_back(pool.allocate(1_MiB));
  const std::size_t before = pool.current_usage().reserved;
  for (void* p : held) {
    ASSERT_TRUE(pool.record_stream(p, stream_id{2}));
    pool.deallocate(p);
  }
  for (void*& p : held) p = pool.allocate(1_MiB);
  EXPECT_EQ(pool.current_usage().reserved, before);
  EXPECT_STREQ(pool.audit(), nullptr);
}

TEST(torch_npu, collects_above_the_threshold_of_its_share_of_the_device) {
  constexpr torch_npu_settings settings{.garbage_collection_threshold = percent(60),
                                        .memory_fraction = percent(50)};
  auto pool = made<native>(settings, {.capacity = 400_MiB});
  EXPECT_EQ(pool.current_usage().limit, 200_MiB);
  void* const old_one = pool.allocate(60_MiB - 512);
  void* const young_one = pool.allocate(42_MiB - 512);
  pool.deallocate(old_one);
  (void)pool.allocate(16_MiB - 512, stream_id{1});
  EXPECT_EQ(pool.current_usage().reserved, 118_MiB) << "not above 120 MiB";
  pool.deallocate(young_one);
  (void)pool.allocate(50_MiB - 512, stream_id{1});
  EXPECT_EQ(pool.statistics().num_device_free, 0u);
  EXPECT_EQ(pool.current_usage().reserved, 168_MiB);
  (void)pool.allocate(66_MiB - 512);
  EXPECT_EQ(pool.statistics().num_device_free, 1u) << "60 MiB went, which were older than the average";
  EXPECT_EQ(pool.current_usage().cached, 42_MiB);
  EXPECT_EQ(pool.statistics().num_alloc_retries, 0u);
}

// aclrtFree does not wait, so torch_npu waits for the whole device before it releases a segment. Here each
// segment waits only for the streams that may still use it.
TEST(torch_npu, segments_are_released_once_their_stream_completes) {
  const auto waited = [](auto give_back) {
    auto pool = made<native>({}, {.capacity = 100_MiB});
    void* const p = pool.allocate(40_MiB, stream_id{5});
    pool.provider().submit(stream_id{5}, 7'000'000'000);
    pool.provider().submit(stream_id{6}, 90'000'000'000);
    pool.deallocate(p);
    give_back(pool);
    EXPECT_EQ(pool.provider().calls().release, 1u);
    EXPECT_EQ(pool.provider().calls().record, pool.provider().calls().discard);
    return pool.provider().now_ns();
  };
  for (const std::uint64_t ended : {waited([](native& pool) { pool.trim(); }),
                                    waited([](native& pool) { (void)pool.allocate(80_MiB); })}) {
    EXPECT_GE(ended, 7'000'000'000u);
    EXPECT_LT(ended, 90'000'000'000u);
  }
}
template <typename Allocator>
void waits_before_a_segment_goes_back() {
  simulated_npu npu;
  {
    Allocator pool{provider_ref(npu)};
    void* const p = pool.allocate(40_MiB, stream_id{5});
    npu.submit(stream_id{5}, 7'000'000'000);
    pool.deallocate(p);
    pool.trim();
    EXPECT_GE(npu.now_ns(), 7'000'000'000u);
    EXPECT_EQ(pool.current_usage().reserved, 0u);
    pool.deallocate(pool.allocate(40_MiB, stream_id{5}));
    npu.submit(stream_id{5}, 7'000'000'000);
  }
  EXPECT_GE(npu.now_ns(), 14'000'000'000u) << "and at the end of the allocator";
  EXPECT_EQ(npu.used(), 0u);
}
TEST(torch_npu_threads, segments_wait_in_every_kind_of_allocator) {
  using shared = provider_ref<simulated_npu>;
  waits_before_a_segment_goes_back<caching_allocator<torch_npu_family::native, shared>>();
  waits_before_a_segment_goes_back<locked<caching_allocator<torch_npu_family::native, shared>>>();
  waits_before_a_segment_goes_back<per_stream<caching_allocator<torch_npu_family::native, shared>>>();
}
TEST(torch_npu, a_segment_stays_if_its_stream_cannot_be_waited_for) {
  auto pool = made<native>({});
  pool.deallocate(pool.allocate(40_MiB));
  for (const std::uint64_t failing : {2u, 3u}) {  // wait and release
    pool.provider().fail_call(failing);
    pool.trim();
    EXPECT_EQ(pool.current_usage().reserved, 42_MiB) << failing;
    EXPECT_STREQ(pool.audit(), nullptr);
  }
  pool.provider().fail_every(1);
  pool.trim();
  EXPECT_EQ(pool.current_usage().reserved, 42_MiB);
  pool.provider().fail_every(0);
  pool.provider().fail_call(1);
  pool.trim();
  EXPECT_EQ(pool.current_usage().reserved, 0u) << "a stream that takes no mark is synchronized";
  EXPECT_EQ(pool.provider().calls().synchronize, 2u);
}

TEST(torch_npu, a_preset_has_its_settings) {
  constexpr torch_npu_settings settings{.expandable_segments = true, .segment_size = 128_MiB};
  caching_allocator<torch_npu_family::under<settings>, simulated_npu> pool;
  (void)pool.allocate(8_MiB);
  EXPECT_EQ(pool.current_usage().reserved, 128_MiB);
  caching_allocator<torch_npu<>, simulated_npu> plain;
  (void)plain.allocate(8_MiB);
  EXPECT_EQ(plain.statistics().all.segment.current, 1);
}

}  // namespace
