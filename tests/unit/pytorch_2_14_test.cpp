// SPDX-License-Identifier: Apache-2.0
// The rules in which PyTorch 2.14 differs from 2.6, each next to the behaviour of 2.6.
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/config/grammar.hpp>
#include <tessera/config/pytorch_conf.hpp>
#include <tessera/extension/private_pools.hpp>
#include <tessera/interop/memory_fraction.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/recipe/pinned.hpp>
#include <tessera/recipe/pytorch.hpp>
#include <tessera/recipe/pytorch_2_11.hpp>
#include <tessera/recipe/pytorch_2_14.hpp>
#include <tessera/recipe/pytorch_family.hpp>
#include <tessera/tessera.hpp>

namespace {

using namespace tessera;

simulated_device device_of(std::size_t capacity) {
  return simulated_device{simulated_device::options{.capacity = capacity}};
}
template <typename Recipe>
using on_device = caching_allocator<Recipe, simulated_device>;

/// A device whose addresses decrease with each of four segments.
class falling_device : public simulated_device {
 public:
  using simulated_device::simulated_device;
  [[nodiscard]] void* acquire(std::size_t bytes, page_kind kind = {}) noexcept {
    if (spare_.empty()) {
      for (int i = 0; i < 4; ++i) spare_.push_back(simulated_device::acquire(bytes, kind));
    }
    void* const highest = spare_.back();
    spare_.pop_back();
    return highest;
  }

 private:
  std::vector<void*> spare_;
};

// Row 124.
TEST(pytorch_2_14, of_equal_blocks_that_of_the_oldest_segment_serves) {
  const auto which = [](auto&& pool) {
    void* const x = pool.allocate(20_MiB);
    void* const y = pool.allocate(20_MiB);
    EXPECT_LT(y, x);
    pool.deallocate(y);
    pool.deallocate(x);
    void* const served = pool.allocate(20_MiB);
    EXPECT_STREQ(pool.audit(), nullptr);
    return served == x ? 'x' : served == y ? 'y' : '?';
  };
  EXPECT_EQ(which(caching_allocator<pytorch_2_14_family::native, falling_device>()), 'x');
  EXPECT_EQ(which(caching_allocator<pytorch_2_11_family::native, falling_device>()), 'y');
  EXPECT_EQ(which(caching_allocator<pytorch_family::native, falling_device>()), 'y');
}

TEST(pytorch_2_14, pytorch_2_11_has_its_pools_but_no_key_for_a_fast_failure) {
  static_assert(std::is_same_v<pytorch_2_11<>, pytorch_2_11_native>);
  EXPECT_EQ(pytorch_2_11_family::index_for({.expandable_segments = true}), 1u);
  EXPECT_EQ(pytorch_2_11_family::index_for({.throw_on_oom = true}), pytorch_2_11_family::count);
  EXPECT_EQ(pytorch_2_14_family::index_for({.throw_on_oom = true}), 0u);
  on_device<pytorch_2_11<>> pool;
  void* const p = pool.allocate(1_MiB + 1);
  EXPECT_EQ(pool.current_usage().reserved, 20_MiB);
  pool.deallocate(p);
}

TEST(pytorch_2_14, in_one_segment_the_lower_address_serves) {
  on_device<pytorch_2_14<>> pool;
  std::vector<void*> blocks;
  for (int i = 0; i < 6; ++i) blocks.push_back(pool.allocate(1_KiB));
  pool.deallocate(blocks[4]);
  pool.deallocate(blocks[1]);
  EXPECT_EQ(pool.allocate(1_KiB), blocks[1]);
  EXPECT_EQ(pool.allocate(1_KiB), blocks[4]);
}

// So many that the bin is not a list any more.
TEST(pytorch_2_14, many_equal_blocks_serve_from_the_oldest_segment_on) {
  caching_allocator<pytorch_2_14_family::native, falling_device> pool;
  std::vector<void*> by_age;
  for (int i = 0; i < 60; ++i) by_age.push_back(pool.allocate(20_MiB));
  for (std::size_t i = 0; i < 60; ++i) pool.deallocate(by_age[i * 7 % 60]);
  EXPECT_STREQ(pool.audit(), nullptr);
  for (void* const expected : by_age) ASSERT_EQ(pool.allocate(20_MiB), expected);
}

// The flags of a live block do not change the order of its segment.
TEST(pytorch_2_14, recorded_streams_do_not_change_the_order) {
  caching_allocator<pytorch_2_14_family::native, falling_device> pool;
  std::vector<void*> by_age;
  for (int i = 0; i < 4; ++i) by_age.push_back(pool.allocate(20_MiB));
  for (void* const p : by_age) ASSERT_TRUE(pool.record_stream(p, stream_id{1}));
  for (void* const p : by_age) pool.deallocate(p);
  for (void* const expected : by_age) ASSERT_EQ(pool.allocate(20_MiB), expected);
  EXPECT_STREQ(pool.audit(), nullptr);
}

/// A device whose ranges have decreasing addresses.
class falling_ranges : public simulated_device {
 public:
  using simulated_device::simulated_device;
  [[nodiscard]] void* reserve(std::size_t bytes, std::size_t alignment) noexcept {
    if (spare_ == nullptr) spare_ = simulated_device::reserve(bytes, alignment);
    void* const other = simulated_device::reserve(bytes, alignment);
    return ++asked_ == 1 ? other : asked_ == 2 ? spare_ : other;
  }

 private:
  void* spare_ = nullptr;
  int asked_ = 0;
};
TEST(pytorch_2_14, of_equal_blocks_in_ranges_that_of_the_oldest_range_serves) {
  const auto which = [](auto&& pool) {
    pool.policies().growth.range = 40_MiB;
    void* const x = pool.allocate(40_MiB);
    void* const y = pool.allocate(40_MiB);
    EXPECT_LT(y, x);
    pool.deallocate(y);
    pool.deallocate(x);
    void* const served = pool.allocate(40_MiB);
    EXPECT_STREQ(pool.audit(), nullptr);
    return served == x ? 'x' : served == y ? 'y' : '?';
  };
  EXPECT_EQ(which(caching_allocator<pytorch_2_14_family::expandable, falling_ranges>()), 'x');
  EXPECT_EQ(which(caching_allocator<pytorch_family::expandable, falling_ranges>()), 'y');
}

TEST(pytorch_2_14, a_memory_fraction_is_rounded_to_the_nearest_byte) {
  on_device<pytorch_2_14<>> now{device_of(1001)};
  on_device<pytorch<>> before{device_of(1001)};
  ASSERT_TRUE(set_memory_fraction(now, 0.7) && set_memory_fraction(before, 0.7));  // of which 700.7 bytes are
  EXPECT_EQ(now.current_usage().limit, 701u);
  EXPECT_EQ(before.current_usage().limit, 700u);
  ASSERT_TRUE(set_memory_fraction(now, 0.4));  // 400.4
  EXPECT_EQ(now.current_usage().limit, 400u);
}

TEST(pytorch_2_14, a_memory_fraction_of_1_is_no_limit) {
  on_device<pytorch_2_14<>> pool{device_of(100_MiB)};
  ASSERT_TRUE(set_memory_fraction(pool, 1));
  EXPECT_FALSE(pool.current_usage().has_limit);
  EXPECT_EQ(pool.try_allocate(120_MiB), nullptr);
  EXPECT_EQ(pool.provider().calls().refused, 2u)
      << "the device was asked, and again after everything went back";
}

/// The segments that are released under a threshold of half of 100 MiB, if 60 MiB are idle and 20 are
/// requested.
template <typename Recipe>
std::size_t collected(double share) {
  on_device<Recipe> pool{device_of(100_MiB),
                         Recipe::configured({.garbage_collection_threshold = percent(50)})};
  EXPECT_TRUE(set_memory_fraction(pool, share));
  pool.deallocate(pool.allocate(60_MiB));
  EXPECT_NE(pool.try_allocate(20_MiB, stream_id{1}), nullptr);
  return pool.statistics().num_device_free;
}
TEST(pytorch_2_14, garbage_is_collected_only_with_a_fraction_below_1) {
  EXPECT_EQ(collected<pytorch_2_14_family::native>(1), 0u);
  EXPECT_EQ(collected<pytorch_2_14_family::native>(0.9), 1u);
  EXPECT_EQ(collected<pytorch_family::native>(1), 1u);
}

/// The recovery steps for 80 MiB on a device of 100 MiB, with 40 idle on another stream.
template <typename Recipe>
statistics<2> tried(double share) {
  const bool expandable = !Recipe::accepts({});
  on_device<Recipe> pool{device_of(100_MiB),
                         Recipe::configured({.expandable_segments = expandable, .throw_on_oom = true})};
  EXPECT_TRUE(set_memory_fraction(pool, share));
  pool.deallocate(pool.allocate(40_MiB, stream_id{1}));
  EXPECT_EQ(pool.try_allocate(80_MiB) != nullptr, share < 1);
  return pool.statistics();
}
TEST(pytorch_2_14, throw_on_oom_refuses_at_once_what_exceeds_the_device) {
  for (const auto& counted :
       {tried<pytorch_2_14_family::native>(1), tried<pytorch_2_14_family::expandable>(1)}) {
    EXPECT_EQ(counted.num_oom_rejections, 1u);
    EXPECT_EQ(counted.num_alloc_retries, 0u);
    EXPECT_EQ(counted.all.reserved_bytes.current, std::int64_t{40} << 20) << "nothing was given back";
  }
}
TEST(pytorch_2_14, throw_on_oom_runs_recovery_if_a_fraction_refuses) {
  const auto counted = tried<pytorch_2_14_family::native>(0.9);
  EXPECT_EQ(counted.num_oom_rejections, 0u);
  EXPECT_EQ(counted.num_alloc_retries, 1u);
}

// The limit is tested first. A request within the limit fails at once if it exceeds the fraction of the settings.
TEST(pytorch_2_14, throw_on_oom_keeps_the_fraction_of_the_settings) {
  const auto serves = [](auto recipe) {
    using tested = decltype(recipe);
    on_device<tested> pool{device_of(100_MiB),
                           tested::configured({.memory_fraction = percent(50), .throw_on_oom = true})};
    pool.deallocate(pool.allocate(30_MiB, stream_id{1}));
    EXPECT_TRUE(set_memory_fraction(pool, 1));
    const bool served = pool.try_allocate(40_MiB) != nullptr;
    EXPECT_EQ(pool.statistics().num_oom_rejections, served ? 0u : 1u);
    EXPECT_EQ(pool.statistics().num_alloc_retries, 0u);
    EXPECT_EQ(pool.current_usage().reserved, served ? 70_MiB : 30_MiB) << "nothing was given back";
    return served;
  };
  EXPECT_FALSE(serves(pytorch_2_14_family::native{}));
  EXPECT_TRUE(serves(pytorch_family::native{}));
}
TEST(pytorch_2_14, throw_on_oom_also_rejects_a_retry) {
  using tested = pytorch_2_14_family::native;
  on_device<tested> pool{device_of(100_MiB),
                         tested::configured({.memory_fraction = percent(50), .throw_on_oom = true})};
  ASSERT_TRUE(set_memory_fraction(pool, 0.6));
  pool.deallocate(pool.allocate(30_MiB, stream_id{1}));
  EXPECT_EQ(pool.try_allocate(56_MiB), nullptr) << "above the limit at first, then above the fraction";
  EXPECT_EQ(pool.statistics().num_alloc_retries, 1u);
  EXPECT_EQ(pool.statistics().num_oom_rejections, 1u);
  EXPECT_EQ(pool.current_usage().reserved, 0u);
}

/// How many segments garbage collection releases. Two are idle for some searches, then the fraction is 1 for 30
/// searches. A third becomes idle meanwhile. The first is as large as what must be released.
template <typename Recipe>
std::size_t collected_after_a_time_without_fraction() {
  on_device<Recipe> pool{device_of(200_MiB)};
  pool.policies().eviction.threshold = percent(50);  // which no setting does with expandable segments
  EXPECT_TRUE(set_memory_fraction(pool, 0.9));
  void* const oldest = pool.allocate(40_MiB, stream_id{1});
  void* const old = pool.allocate(20_MiB, stream_id{2});
  void* const young = pool.allocate(40_MiB, stream_id{3});
  void* other = pool.allocate(20_MiB, stream_id{4});
  const auto search = [&](int times) {
    for (; times > 0; --times) {
      pool.deallocate(other);
      other = pool.allocate(20_MiB, stream_id{4});
    }
  };
  pool.deallocate(oldest);
  search(3);
  pool.deallocate(old);
  search(1);
  EXPECT_TRUE(set_memory_fraction(pool, 1));
  search(30);
  pool.deallocate(young);
  EXPECT_TRUE(set_memory_fraction(pool, 0.9));
  EXPECT_NE(pool.try_allocate(20_MiB, stream_id{5}), nullptr);
  EXPECT_STREQ(pool.audit(), nullptr);
  return pool.statistics().num_device_free;
}
// The ages are 5, 2 and 1, so only the oldest is above the average. If ages go on, they are 35, 32 and 1.
TEST(pytorch_2_14, idle_segments_do_not_age_while_there_is_no_fraction) {
  EXPECT_EQ(collected_after_a_time_without_fraction<pytorch_2_14_family::native>(), 1u);
  EXPECT_EQ(collected_after_a_time_without_fraction<pytorch_2_14_family::expandable>(), 1u);
  EXPECT_EQ(collected_after_a_time_without_fraction<pytorch_family::native>(), 2u);
  EXPECT_EQ(collected_after_a_time_without_fraction<pytorch_family::expandable>(), 2u);
}
// A first fraction makes all idle segments young, whatever the fraction was set to before.
TEST(pytorch_2_14, idle_segments_age_from_the_first_fraction_below_1) {
  on_device<pytorch_2_14<>> pool{device_of(200_MiB)};
  pool.policies().eviction.threshold = percent(50);
  ASSERT_TRUE(set_memory_fraction(pool, 1));
  pool.deallocate(pool.allocate(60_MiB));
  for (int i = 0; i < 9; ++i) pool.deallocate(pool.allocate(40_MiB, stream_id{1}));
  ASSERT_TRUE(set_memory_fraction(pool, 0.9));
  EXPECT_NE(pool.try_allocate(20_MiB, stream_id{2}), nullptr);
  EXPECT_EQ(pool.statistics().num_device_free, 2u) << "both have the same age";
}

TEST(pytorch_2_14, of_nested_scopes_the_newest_decides) {
  const auto serves_from_inner = [](auto recipe) {
    caching_allocator<decltype(recipe), simulated_device, extension::private_pools> pool;
    const extension::private_pool outer(pool), inner(pool);
    const auto plain = extension::scope_kind::plain;
    const extension::pool_scope first(outer, {}, plain), second(inner, {}, plain);
    void* const p = pool.allocate(5_MiB);
    const auto door = pool.template get<extension::private_pools>();
    EXPECT_NE(door.usage_of(outer.id()).reserved == 0, door.usage_of(inner.id()).reserved == 0);
    pool.deallocate(p);
    return door.usage_of(inner.id()).reserved > 0;
  };
  EXPECT_TRUE(serves_from_inner(pytorch_2_14_family::native{}));
  EXPECT_TRUE(serves_from_inner(pytorch_2_14_family::expandable{}));
  EXPECT_FALSE(serves_from_inner(pytorch_family::native{}));
}

TEST(pytorch_2_14, keeps_no_range_that_is_too_short) {
  const auto reserved_for_nothing = [](auto recipe) {
    on_device<decltype(recipe)> pool{device_of(80_MiB)};
    EXPECT_EQ(pool.try_allocate(200_MiB), nullptr);
    return pool.provider().held().reserved;
  };
  EXPECT_EQ(reserved_for_nothing(pytorch_2_14_family::expandable{}), 0u);
  EXPECT_EQ(reserved_for_nothing(pytorch_family::expandable{}), 200_MiB)
      << "one of 5 pages for each of two attempts";
}

// The older range goes back first. It has the higher address.
TEST(pytorch_2_14, emptying_the_cache_releases_every_range) {
  caching_allocator<pytorch_2_14_family::expandable, falling_ranges> pool;
  pool.policies().growth.range = 40_MiB;
  void* const x = pool.allocate(40_MiB);
  void* const y = pool.allocate(40_MiB);
  ASSERT_LT(y, x);
  pool.deallocate(x);
  pool.deallocate(y);
  pool.trim();
  EXPECT_EQ(pool.current_usage().reserved, 0u);
  EXPECT_STREQ(pool.audit(), nullptr);
}

TEST(pytorch_2_14, has_no_key_for_the_size_of_a_range) {
  using now = config::pytorch_2_14;
  for (const char* const text :
       {"expandable_segments_reserve:0.5", "expandable_segments_reserve_by_class:[a:1]"}) {
    EXPECT_EQ(config::parse<config::pytorch>(text).index(), 0u) << text;
    const auto read = config::parse<now>(text);
    ASSERT_EQ(read.index(), 1u) << text;
    EXPECT_EQ(std::get<1>(read).code, config::setting_error::error_code::unknown_key);
  }
  EXPECT_EQ(config::parse<now>("max_split_size_mb:32,expandable_segments:True").index(), 0u);
}

TEST(pinned_2_14, the_newest_block_serves_that_is_large_enough) {
  const auto chosen = pytorch_2_14_family::pinned::configured({.pinned_max_round_threshold = 4_MiB});
  on_device<pytorch_2_14_family::pinned> pool{simulated_device{}, chosen};
  void* const older = pool.allocate(3_MiB);
  void* const newer = pool.allocate(3_MiB);
  pool.deallocate(newer);
  pool.deallocate(older);
  EXPECT_EQ(pool.allocate(4_MiB), older) << "which came free last; both are 4 MiB";
  EXPECT_EQ(pool.allocate(4_MiB), newer);
  // Above the threshold sizes are those of the request, and share a bucket.
  void* const large = pool.allocate(30_MiB);
  void* const small = pool.allocate(20_MiB);
  pool.deallocate(large);
  pool.deallocate(small);
  EXPECT_EQ(pool.allocate(18_MiB), small) << "the newest";
  pool.deallocate(small);
  EXPECT_EQ(pool.allocate(25_MiB), large) << "the newest is too small";
  EXPECT_STREQ(pool.audit(), nullptr);
  EXPECT_NE(pool.allocate(16_MiB), small) << "of another class";
  pool.deallocate(large);
  pool.trim();
  EXPECT_EQ(pool.current_usage().cached, 0u);
  EXPECT_STREQ(pool.audit(), nullptr);
}
TEST(pinned_2_14, sizes_are_rounded_within_both_limits) {
  const auto held = [](std::size_t bytes) {
    on_device<pytorch_2_14_family::pinned> pool{
        simulated_device{}, pytorch_2_14_family::pinned::configured(
                                {.pinned_max_round_threshold = 16_MiB, .pinned_max_cached_size = 8_MiB})};
    (void)pool.allocate(bytes);
    return pool.current_usage().reserved;
  };
  EXPECT_EQ(held(5_MiB), 8_MiB);
  EXPECT_EQ(held(8_MiB), 8_MiB);
  EXPECT_EQ(held(9_MiB), 9_MiB);
  EXPECT_EQ(held(17_MiB), 17_MiB);
}

}  // namespace
