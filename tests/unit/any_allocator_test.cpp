// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <new>
#include <type_traits>

#include <gtest/gtest.h>

#include <tessera/any_allocator.hpp>
#include <tessera/concurrent/locked.hpp>
#include <tessera/concurrent/per_stream.hpp>
#include <tessera/core/error.hpp>
#include <tessera/core/private_pool.hpp>
#include <tessera/interop/allocator_handle.hpp>
#include <tessera/observe/inspect.hpp>
#include <tessera/private_pool.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

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
using kinds = testing::Types<caching_allocator<pytorch<>, simulated_device>,
                             caching_allocator<stitched, simulated_device>,
                             locked<pytorch<>, simulated_device>, per_stream<pytorch<>, simulated_device>>;
TYPED_TEST_SUITE(any_allocator_of, kinds);

TYPED_TEST(any_allocator_of, makes_the_calls_of_its_allocator) {
  TypeParam allocator{simulated_device({.capacity = 1_GiB})};
  const any_allocator any(allocator);
  void* const p = any.allocate(5_MiB, stream_id{1});
  ASSERT_NE(p, nullptr);
  EXPECT_EQ(allocator.current_usage().live, 5_MiB);
  EXPECT_EQ(any.current_usage().live, 5_MiB);
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
    const private_pool pool(any);
    id = pool.id();
    EXPECT_TRUE(allocator.has_pool(id));
    EXPECT_TRUE(any.has_pool(id));
    EXPECT_TRUE(any.retain_pool(id));
    EXPECT_EQ(any.uses_of_pool(id), 2u);
    EXPECT_TRUE(any.release_pool(id));
    {
      const pool_scope scope(pool, stream_id{1});
      EXPECT_TRUE(any.is_capturing());
      EXPECT_TRUE(allocator.is_capturing());
      EXPECT_FALSE(any.begin_allocate_to_pool(id, {}));
      p = any.allocate(5_MiB, stream_id{1});
      EXPECT_EQ(segment_of(allocator, p).private_pool, id);
      EXPECT_EQ(segment_of(allocator, any.allocate(5_MiB, stream_id{2})).private_pool, pool_id{});
    }
    EXPECT_FALSE(any.is_capturing());
    EXPECT_FALSE(any.end_allocate_to_pool(id));
  }
  any.deallocate(p);
  any.trim_pool(id);
  EXPECT_FALSE(any.has_pool(id));
  EXPECT_EQ(any.audit(), nullptr);
}

TYPED_TEST(any_allocator_of, sleeps_if_the_memory_of_its_allocator_can) {
  TypeParam allocator{simulated_device({.capacity = 1_GiB})};
  any_allocator any(allocator);
  private_pool pool(any);
  {
    const pool_scope scope(pool);
    (void)any.allocate(64_MiB);
  }
  const std::size_t before = allocator.current_usage().reserved;
  const sleep_result slept = pool.sleep(sleep_contents::discard);
  EXPECT_EQ(static_cast<bool>(slept), TypeParam::can_sleep);
  EXPECT_EQ(pool.is_asleep(), TypeParam::can_sleep);
  if constexpr (TypeParam::can_sleep) {
    EXPECT_LE(allocator.current_usage().reserved + 64_MiB, before);
    EXPECT_TRUE(pool.wake());
    EXPECT_FALSE(any.is_asleep(pool.id()));
  } else {
    EXPECT_STREQ(slept.why, "the memory of this allocator cannot sleep");
    EXPECT_STREQ(pool.wake().why, slept.why);
  }
  EXPECT_EQ(allocator.current_usage().reserved, before);
}

/// An allocator without private pools.
class without_pools : private caching_allocator<pytorch<>, simulated_device> {
  using base = caching_allocator<pytorch<>, simulated_device>;

 public:
  using base::allocate, base::try_allocate, base::deallocate, base::try_deallocate, base::record_stream,
      base::try_record_stream, base::trim, base::current_usage, base::audit;
};
TEST(any_allocator, has_no_pool_if_its_allocator_has_none) {
  without_pools allocator;
  any_allocator any(allocator);
  EXPECT_EQ(any.create_pool(), pool_id{});
  EXPECT_THROW(private_pool<any_allocator>{any}, std::bad_alloc);
  const pool_id other{1};
  EXPECT_FALSE(any.has_pool(other) || any.retain_pool(other) || any.release_pool(other));
  EXPECT_FALSE(any.begin_allocate_to_pool(other, {}) || any.end_allocate_to_pool(other));
  EXPECT_FALSE(any.is_capturing() || any.is_asleep());
  EXPECT_EQ(any.uses_of_pool(other), 0u);
  EXPECT_NE(any.sleep_pool({}, sleep_contents::discard).why, nullptr);
  EXPECT_NE(any.wake_pool({}).why, nullptr);
  any.trim_pool(other);
  any.deallocate(any.allocate(1000));
}

TEST(any_allocator, converts_from_an_allocator) {
  caching_allocator<pytorch<>, simulated_device> allocator;
  texture_cache textures(allocator);
  void* const p = textures.memory.allocate(5_MiB);
  EXPECT_EQ(allocator.current_usage().live, 5_MiB);
  textures.memory.deallocate(p);
}

TEST(any_allocator, is_equal_to_another_of_the_same_allocator) {
  caching_allocator<pytorch<>, simulated_device> one, two;
  const any_allocator a(one), same(one), other(two);
  const any_allocator copy = a;
  EXPECT_EQ(a, same);
  EXPECT_EQ(a, copy);
  EXPECT_NE(a, other);
}

TEST(any_allocator_death, aborts_as_its_allocator_does) {
  caching_allocator<pytorch<>, simulated_device> allocator;
  const any_allocator any(allocator);
  void* const p = any.allocate(1000);
  any.deallocate(p);
  EXPECT_DEATH(any.deallocate(p), "deallocate");
}

}  // namespace
