// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <new>
#include <type_traits>

#include <gtest/gtest.h>

#include <tessera/any_allocator.hpp>
#include <tessera/concurrent/locked.hpp>
#include <tessera/concurrent/per_stream.hpp>
#include <tessera/core/error.hpp>
#include <tessera/debug/tagged.hpp>
#include <tessera/extension/private_pools.hpp>
#include <tessera/extension/sleep_mode.hpp>
#include <tessera/interop/allocator_handle.hpp>
#include <tessera/observe/inspect.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

#include "extensions.hpp"

namespace {

// The section "Keep tessera out of my headers" of the guide shows these lines.
struct texture_cache {
  explicit texture_cache(tessera::any_allocator from) : memory(from) {}
  tessera::any_allocator memory;
};

using namespace tessera;

static_assert(std::is_trivially_copyable_v<any_allocator>);
static_assert(!std::is_default_constructible_v<any_allocator>);
static_assert(detail::stream_allocator<any_allocator>, "the types of interop/ accept it");

template <typename Allocator>
class any_allocator_of : public testing::Test {};
using kinds = testing::Types<
    caching_allocator<pytorch<>, simulated_device, extension::private_pools, extension::sleep_mode>,
    caching_allocator<stitched, simulated_device, extension::private_pools, extension::sleep_mode>,
    locked<caching_allocator<pytorch<>, simulated_device, extension::private_pools, extension::sleep_mode>>,
    per_stream<
        caching_allocator<pytorch<>, simulated_device, extension::private_pools, extension::sleep_mode>>>;
TYPED_TEST_SUITE(any_allocator_of, kinds);

TYPED_TEST(any_allocator_of, makes_the_calls_of_its_allocator) {
  TypeParam allocator{simulated_device({.capacity = 1_GiB})};
  const any_allocator any(allocator);
  void* const p = any.allocate(5_MiB, stream_id{1});
  ASSERT_NE(p, nullptr);
  EXPECT_EQ(allocator.current_usage().allocated, 5_MiB);
  EXPECT_EQ(any.current_usage().allocated, 5_MiB);
  EXPECT_TRUE(any.record_stream(p, stream_id{2}));
  EXPECT_TRUE(any.try_record_stream(p, stream_id{2}));
  EXPECT_TRUE(any.try_deallocate(p));
  EXPECT_FALSE(any.try_deallocate(p)) << "not live any more";
  EXPECT_FALSE(any.try_record_stream(p, stream_id{2}));
  EXPECT_EQ(any.audit(), nullptr);

  void* const small = any.try_allocate(1000);
  any.deallocate(small, 1000);
  any.deallocate(any.allocate(1000));
  any.deallocate(nullptr);
  EXPECT_GT(any.current_usage().reserved, 0u);
  any.trim();
  EXPECT_EQ(any.current_usage().reserved, 0u);
  EXPECT_EQ(any.allocate(0), nullptr);
  EXPECT_EQ(any.try_allocate(2_GiB), nullptr);
  EXPECT_THROW((void)any.allocate(2_GiB), out_of_memory);
}

TYPED_TEST(any_allocator_of, has_the_private_pools_of_its_allocator) {
  TypeParam allocator{simulated_device({.capacity = 1_GiB})};
  any_allocator any(allocator);
  pool_id id;
  void* p = nullptr;
  {
    const extension::private_pool pool(any);
    id = pool.id();
    EXPECT_TRUE(pools(allocator).has(id));
    EXPECT_TRUE(pools(any).has(id));
    EXPECT_TRUE(pools(any).retain(id));
    EXPECT_EQ(pools(any).use_count(id), 2u);
    EXPECT_TRUE(pools(any).release(id));
    {
      const extension::pool_scope scope(pool, stream_id{1}, extension::scope_kind::capture);
      EXPECT_TRUE(pools(any).is_capturing());
      EXPECT_TRUE(pools(allocator).is_capturing());
      EXPECT_FALSE(pools(any).open(id, extension::scope_kind::capture));
      p = any.allocate(5_MiB, stream_id{1});
      EXPECT_EQ(segment_of(allocator, p).private_pool, id);
      EXPECT_EQ(segment_of(allocator, any.allocate(5_MiB, stream_id{2})).private_pool, pool_id{});
    }
    EXPECT_FALSE(pools(any).is_capturing());
    EXPECT_FALSE(pools(any).close(id));
  }
  any.deallocate(p);
  pools(any).trim(id);
  EXPECT_FALSE(pools(any).has(id));
  EXPECT_EQ(any.audit(), nullptr);
}

TYPED_TEST(any_allocator_of, sleeps_if_the_memory_of_its_allocator_can) {
  TypeParam allocator{simulated_device({.capacity = 1_GiB})};
  any_allocator any(allocator);
  extension::private_pool pool(any);
  {
    const extension::pool_scope scope(pool, extension::scope_kind::capture);
    (void)any.allocate(64_MiB);
  }
  const std::size_t before = allocator.current_usage().reserved;
  const extension::sleep_result slept = sleep_mode_of(pool).sleep(extension::sleep_contents::discard);
  EXPECT_EQ(static_cast<bool>(slept), TypeParam::has_ranges);
  EXPECT_EQ(sleep_mode_of(pool).is_asleep(), TypeParam::has_ranges);
  if constexpr (TypeParam::has_ranges) {
    EXPECT_LE(allocator.current_usage().reserved + 64_MiB, before);
    EXPECT_TRUE(sleep_mode_of(pool).wake());
    EXPECT_FALSE(sleep_mode_of(any).is_asleep(pool.id()));
  } else {
    EXPECT_STREQ(slept.why, TypeParam::template has<extension::sleep_mode>
                                ? "sleep needs a recipe that maps memory into ranges, such as stitched"
                                : "the allocator has no such extension");
    EXPECT_STREQ(sleep_mode_of(pool).wake().why, slept.why);
  }
  EXPECT_EQ(allocator.current_usage().reserved, before);
}

/// An allocator without private pools.
class without_pools : private caching_allocator<pytorch<>, simulated_device, extension::private_pools,
                                                extension::sleep_mode> {
  using base =
      caching_allocator<pytorch<>, simulated_device, extension::private_pools, extension::sleep_mode>;

 public:
  using base::allocate, base::try_allocate, base::deallocate, base::try_deallocate, base::record_stream,
      base::try_record_stream, base::trim, base::current_usage, base::audit;
};
TEST(any_allocator, has_no_pool_if_its_allocator_has_none) {
  without_pools allocator;
  any_allocator any(allocator);
  EXPECT_EQ(pools(any).create(), pool_id{});
  EXPECT_THROW((void)extension::private_pool<any_allocator>{any}, std::bad_alloc);
  const pool_id other{1};
  EXPECT_FALSE(pools(any).has(other) || pools(any).retain(other) || pools(any).release(other));
  EXPECT_FALSE(pools(any).open(other, extension::scope_kind::capture) || pools(any).close(other));
  EXPECT_FALSE(pools(any).is_capturing() || sleep_mode_of(any).is_asleep());
  EXPECT_EQ(pools(any).use_count(other), 0u);
  EXPECT_NE(sleep_mode_of(any).sleep(pool_id{}, extension::sleep_contents::discard).why, nullptr);
  EXPECT_NE(sleep_mode_of(any).wake(pool_id{}).why, nullptr);
  pools(any).trim(other);
  any.deallocate(any.allocate(1000));
}

TEST(any_allocator, converts_from_an_allocator) {
  caching_allocator<pytorch<>, simulated_device, extension::private_pools, extension::sleep_mode> allocator;
  texture_cache textures(allocator);
  void* const p = textures.memory.allocate(5_MiB);
  EXPECT_EQ(allocator.current_usage().allocated, 5_MiB);
  textures.memory.deallocate(p);
}

TEST(any_allocator, is_equal_to_another_of_the_same_allocator) {
  caching_allocator<pytorch<>, simulated_device, extension::private_pools, extension::sleep_mode> one, two;
  const any_allocator a(one), same(one), other(two);
  const any_allocator copy = a;
  EXPECT_EQ(a, same);
  EXPECT_EQ(a, copy);
  EXPECT_NE(a, other);
}

TEST(any_allocator, is_not_equal_to_one_of_the_allocator_inside) {
  debug::tagged<locked<caching_allocator<pytorch<>, simulated_device>>> outer;
  const any_allocator around(outer);
  const any_allocator within(outer.inner());
  EXPECT_NE(around, within) << "a free through the one would leave the tag of the other";
  EXPECT_EQ(around, any_allocator(outer));
}

TEST(any_allocator_death, aborts_as_its_allocator_does) {
  caching_allocator<pytorch<>, simulated_device, extension::private_pools, extension::sleep_mode> allocator;
  const any_allocator any(allocator);
  void* const p = any.allocate(1000);
  any.deallocate(p);
  EXPECT_DEATH(any.deallocate(p), "deallocate");
}

}  // namespace
