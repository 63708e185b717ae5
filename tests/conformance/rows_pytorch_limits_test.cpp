// SPDX-License-Identifier: Apache-2.0
// Rows 60 to 71 and 121 to 124 about PyTorch's allocator: limits, recovery, garbage collection, oversize
// blocks.
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

#include "extensions.hpp"
#include "rows.hpp"

namespace {

using namespace tessera;
using namespace conformance;
using action = allocator_event::action;
using pytorch_settings = config::pytorch::settings;

native under(const pytorch_settings& settings, std::size_t capacity = 80_GiB) {
  return native{device_of(capacity), pytorch_family::native::configured(settings)};
}
expandable expandable_under(pytorch_settings settings, std::size_t capacity = 80_GiB) {
  settings.expandable_segments = true;
  return expandable{device_of(capacity), pytorch_family::expandable::configured(settings)};
}

TEST(torch_row, n061_a_tenth_of_the_device_is_less_than_a_fifth) {
  native pool = under({.memory_fraction = percent(10)});
  EXPECT_THROW((void)pool.allocate(16_GiB), out_of_memory);
  EXPECT_EQ(pool.statistics().num_ooms, 1u);
}
TEST(torch_row, n062_a_second_half_is_served_from_the_first_once_that_is_freed) {
  native pool{device_of(1_GiB)};
  (void)pool.allocate(1_KiB);
  void* const half = pool.allocate(512_MiB);
  EXPECT_THROW((void)pool.allocate(512_MiB), out_of_memory);
  pool.deallocate(half);
  const auto asked = pool.provider().calls().acquire;
  EXPECT_EQ(pool.allocate(512_MiB), half);
  EXPECT_EQ(pool.provider().calls().acquire, asked);
}

TEST(torch_row, n063_a_limit_with_max_split_applies_only_in_ranges) {
  expandable pool = expandable_under({.max_split_size = 40_MiB}, 1_GiB);
  pool.policies().growth.limit = 120_MiB;
  std::vector<void*> held;
  for (std::uint64_t i = 0; i < 3; ++i) held.push_back(pool.allocate(40_MiB, stream_id{i}));
  EXPECT_EQ(pool.try_allocate(40_MiB), nullptr);
  EXPECT_EQ(reserved(pool), 120_MiB);
  for (void* p : held) pool.deallocate(p);
  EXPECT_NE(pool.try_allocate(120_MiB), nullptr);
  EXPECT_EQ(pool.statistics().num_alloc_retries, 2u) << "the pages of other streams go in the full flush";
  EXPECT_EQ(reserved(pool), 120_MiB);
  EXPECT_STREQ(pool.audit(), nullptr);
}

TEST(torch_row, n065_small_requests_do_not_take_oversize_blocks) {
  native pool = under({.max_split_size = 20_MiB});
  pool.deallocate(pool.allocate(30_MiB));
  EXPECT_EQ(pool.statistics().oversize_allocations.allocated, 1);
  (void)pool.allocate(5_MiB);
  EXPECT_EQ(reserved(pool), 50_MiB);
}
TEST(torch_row, n066_oversize_blocks_serve_requests_that_waste_less_than_the_slack) {
  native pool = under({.max_split_size = 20_MiB, .max_non_split_rounding = 20_MiB});
  void* const p = pool.allocate(60_MiB);
  pool.deallocate(p);
  EXPECT_EQ(pool.allocate(41_MiB), p);
  EXPECT_EQ(live(pool), 60_MiB) << "reused whole";
  pool.deallocate(p);
  EXPECT_NE(pool.allocate(40_MiB), p);
  EXPECT_EQ(reserved(pool), 100_MiB);
}

/// An allocator that collects garbage, and a way to age its idle blocks.
struct aging {
  native pool = under({.garbage_collection_threshold = percent(50)}, 1_GiB);
  void* kept = pool.allocate(5_MiB, stream_id{9});  // the segment is split, so it is never a candidate

  /// Searches the pool this many times.
  void search(int times) {
    for (int i = 0; i < times; ++i) pool.deallocate(pool.allocate(2_MiB, stream_id{9}));
  }
  /// Causes a miss that collects memory above half of the limit. Returns the sizes of the released segments.
  std::vector<std::size_t> miss(std::size_t bytes) {
    observer_of(pool).events.clear();
    (void)pool.allocate(bytes, stream_id{9});
    std::vector<std::size_t> gone;
    for (const allocator_event& e : observer_of(pool).events)
      if (e.what == action::segment_free) gone.push_back(e.bytes);
    return gone;
  }
};

TEST(torch_row, n067_all_blocks_as_old_as_the_average_are_released_in_one_pass) {
  aging a;
  std::array<void*, 3> blocks{};
  for (std::size_t i = 0; i < 3; ++i) blocks[i] = a.pool.allocate((50 + 2 * i) * 1_MiB);
  a.pool.deallocate(blocks[0]);
  a.pool.deallocate(blocks[1]);
  a.search(3);
  a.pool.deallocate(blocks[2]);
  a.search(1);  // the miss is one more search: the ages are 5, 5 and 2
  a.pool.policies().growth.limit = 300_MiB;
  ASSERT_EQ(reserved(a.pool), 176_MiB);
  EXPECT_EQ(a.miss(60_MiB), (std::vector<std::size_t>{50_MiB, 52_MiB})) << "26 MiB were wanted";
}
TEST(torch_row, n068_blocks_of_one_age_are_all_released_in_the_first_pass) {
  aging a;
  std::array<void*, 3> blocks{};
  for (std::size_t i = 0; i < 3; ++i) blocks[i] = a.pool.allocate((50 + 2 * i) * 1_MiB);
  for (void* p : blocks) a.pool.deallocate(p);
  a.pool.policies().growth.limit = 300_MiB;
  EXPECT_EQ(a.miss(60_MiB), (std::vector<std::size_t>{50_MiB, 52_MiB, 54_MiB}));
}

TEST(torch_row, n069_a_request_above_the_limit_is_rejected_without_trying_to_recover) {
  native pool = under({.memory_fraction = percent(1), .throw_on_oom = true});
  void* const cached = pool.allocate(100_MiB);
  pool.deallocate(cached);
  EXPECT_THROW((void)pool.allocate(1_GiB), out_of_memory);
  EXPECT_EQ(pool.statistics().num_oom_rejections, 1u);
  EXPECT_EQ(pool.statistics().num_ooms, 1u) << "here a rejection is one of them, in PyTorch it is none";
  EXPECT_EQ(pool.statistics().num_alloc_retries, 0u);
  EXPECT_EQ(pool.current_usage().cached, 100_MiB) << "the cache is whole";
  EXPECT_NE(pool.allocate(1_KiB), nullptr);
  EXPECT_EQ(pool.statistics().num_oom_rejections, 1u);
}
TEST(torch_row, n070_an_observer_gets_one_event_for_an_impossible_request) {
  native pool;
  EXPECT_THROW((void)pool.allocate(1_GiB * 1_MiB), out_of_memory);
  EXPECT_EQ(observer_of(pool).count(action::oom), 1u);
  EXPECT_EQ(observer_of(pool).events.back().what, action::oom);
  EXPECT_EQ(observer_of(pool).events.back().bytes, 1_GiB * 1_MiB);
}

TEST(torch_row, n121_a_max_split_of_20M_keeps_5M_out_of_the_20M_that_they_took_before) {
  native pool = under({.max_split_size = 20_MiB});
  void* const p = pool.allocate(5_MiB);
  EXPECT_EQ(reserved(pool), 20_MiB);
  EXPECT_EQ(split_off(pool), (parts{1, 15_MiB}));
  pool.deallocate(p);
  EXPECT_EQ(split_off(pool), parts{});
  EXPECT_NE(pool.allocate(5_MiB), p);
  EXPECT_EQ(reserved(pool), 40_MiB);
}
/// Of two segments of the same size, the later one has the lower address.
class falling_device : public simulated_device {
 public:
  [[nodiscard]] void* acquire(std::size_t bytes, page_kind kind = page_kind::normal) noexcept {
    if (void* const low = kept_; low != nullptr) return kept_ = nullptr, low;
    kept_ = simulated_device::acquire(bytes, kind);
    return simulated_device::acquire(bytes, kind);
  }

 private:
  void* kept_ = nullptr;
};
TEST(torch_row, n124_of_two_equal_blocks_the_lower_address_serves_as_in_2_6) {
  observed<pytorch_family::native, falling_device> pool;
  void* const x = pool.allocate(30_MiB);
  void* const y = pool.allocate(30_MiB);
  ASSERT_LT(at(y), at(x));
  pool.deallocate(x);
  pool.deallocate(y);
  EXPECT_EQ(pool.allocate(30_MiB), y);
}

}  // namespace
