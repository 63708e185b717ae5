// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <type_traits>

#include <gtest/gtest.h>

#include <tessera/any_allocator.hpp>
#include <tessera/concurrent/locked.hpp>
#include <tessera/concurrent/per_stream.hpp>
#include <tessera/core/error.hpp>
#include <tessera/interop/allocator_handle.hpp>
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
