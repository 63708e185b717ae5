// SPDX-License-Identifier: Apache-2.0
// The effect of each setting that the documents of other systems show as an example, on a simulated device
// and in host memory.
#include <cstddef>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/provider/adaptor.hpp>
#include <tessera/tessera.hpp>

#include "extensions.hpp"
#include "seed_settings.hpp"

namespace {

using namespace tessera;
using namespace conformance;
using action = allocator_event::action;

template <typename Place>
class seed_examples : public testing::Test {};
using places = testing::Types<simulated_place, host_place>;
TYPED_TEST_SUITE(seed_examples, places);

// torch_npu adds 32 bytes to each request. So its blocks are 512 bytes larger than the requests here.
TYPED_TEST(seed_examples, npu_1_blocks_above_32_mb_are_not_split) {
  TypeParam place;
  on<npu_1, TypeParam> pool{provider_ref(place.device)};
  void* const large = pool.allocate(60_MiB);
  place.write(place.compute, large, 60_MiB, 1);
  pool.deallocate(large);
  EXPECT_NE(pool.allocate(5_MiB), large);
  EXPECT_EQ(pool.allocate(45_MiB), large);
  EXPECT_EQ(pool.current_usage().allocated, 62_MiB + 5_MiB + 512) << "the 62 MiB serve whole";
  place.finish();
}
TYPED_TEST(seed_examples, npu_1_old_idle_memory_is_released_above_0_6_of_the_limit) {
  TypeParam place;
  on<npu_1, TypeParam> pool{provider_ref(place.device)};
  pool.policies().growth.limit = 100_MiB;
  void* const used = pool.allocate(34_MiB);
  void* const idle = pool.allocate(36_MiB);
  pool.deallocate(idle);
  pool.deallocate(used);
  for (int i = 0; i < 5; ++i) pool.deallocate(pool.allocate(34_MiB));
  EXPECT_EQ(reserved(pool), 74_MiB);
  EXPECT_NE(pool.allocate(30_MiB, place.copies), nullptr);
  EXPECT_EQ(reserved(pool), 68_MiB) << "14 MiB above 60 had to go, and 38 went";
  EXPECT_EQ(pool.allocate(34_MiB), used);
  EXPECT_EQ(observer_of(pool).count(action::refused), 0u) << "nothing had run out";
  EXPECT_EQ(pool.statistics().num_alloc_retries, 0u);
}
TYPED_TEST(seed_examples, npu_2_large_blocks_begin_at_multiples_of_16_kb) {
  TypeParam place;
  on<npu_2, TypeParam> pool{provider_ref(place.device)};
  for (std::size_t i = 0; i < 6; ++i) {
    void* const p = pool.allocate(2_MiB + i * 512);
    EXPECT_EQ(at(p) % 16_KiB, 0u);
    place.write(place.compute, p, 2_MiB + i * 512, 7);
    (void)pool.allocate(1_MiB + 512);
  }
  place.finish();
  EXPECT_TRUE(place.is_good());
}
// With torch_npu's 32 bytes, a request of 1 MiB is 512 bytes above 1 MiB. The document ignores these bytes.
TYPED_TEST(seed_examples, npu_3_giant_pages_leave_requests_up_to_1_mb_alone) {
  TypeParam place;
  on<npu_3, TypeParam> pool{provider_ref(place.device)};
  void* const p = pool.allocate(1_MiB - 32);
  place.write(place.compute, p, 1_MiB - 32, 3);
  EXPECT_EQ(reserved(pool), 2_MiB);
  if (place.device.capacity() > 1_GiB) {
    (void)pool.allocate(1_MiB);
    EXPECT_EQ(reserved(pool), 1_GiB + 2_MiB);
  }
  place.finish();
}
TYPED_TEST(seed_examples, npu_4_segments_have_40_mb) {
  TypeParam place;
  on<npu_4, TypeParam> pool{provider_ref(place.device)};
  (void)pool.allocate(5_MiB);
  EXPECT_EQ(reserved(pool), 40_MiB);
  (void)pool.allocate(36_MiB);
  EXPECT_EQ(reserved(pool), 80_MiB);
  (void)pool.allocate(1_KiB);
  EXPECT_EQ(reserved(pool), 82_MiB) << "small blocks keep their own";
}
TYPED_TEST(seed_examples, npu_5_sizes_that_are_much_alike_share_a_block) {
  TypeParam place;
  on<npu_5_number, TypeParam> pool{provider_ref(place.device)};
  void* const p = pool.allocate(33_MiB);
  for (std::size_t bytes : {34_MiB, 36_MiB, 39_MiB, 33_MiB + 1}) {
    pool.deallocate(p);
    EXPECT_EQ(pool.allocate(bytes), p);
    place.write(place.compute, p, bytes, 5);
  }
  EXPECT_EQ(taken(pool), 1u);
  place.finish();
}
// According to the document, the number of a key applies below its size. PyTorch applies it from that size on
// (row 30).
TYPED_TEST(seed_examples, npu_5_a_list_rounds_large_sizes_alone) {
  const policies<npu_5_list> chosen;
  EXPECT_EQ(chosen.rounding.block_size(300_MiB), 300_MiB + 512);
  EXPECT_EQ(chosen.rounding.block_size(600_MiB), 768_MiB);
  EXPECT_EQ(chosen.rounding.block_size(1100_MiB), 1280_MiB);
  EXPECT_EQ(chosen.rounding.block_size(2049_MiB), 2304_MiB);
  TypeParam place;
  on<npu_5_list, TypeParam> pool{provider_ref(place.device)};
  (void)pool.allocate(33_MiB);
  EXPECT_EQ(reserved(pool), 34_MiB);
}

TYPED_TEST(seed_examples, npu_7_pinned_segments_have_20_mb) {
  TypeParam place;
  on<npu_7, TypeParam> pool{provider_ref(place.device)};
  void* const first = pool.allocate(1_KiB);
  EXPECT_EQ(reserved(pool), 20_MiB);
  void* const second = pool.allocate(30_MiB);
  EXPECT_EQ(reserved(pool), 40_MiB);
  EXPECT_EQ(at(second), at(first) + 1_KiB + 512) << "in the rest of the first page";
  place.write(place.compute, second, 30_MiB, 8);
  place.finish();
  pool.deallocate(first);
  pool.deallocate(second);
  EXPECT_EQ(pool.allocate(35_MiB), first) << "free blocks of any size serve any";
  EXPECT_EQ(reserved(pool), 40_MiB);
}

TYPED_TEST(seed_examples, acl_normal_pages_replace_huge_pages_that_ran_out) {
  TypeParam place;
  on<backed<acl_malloc_policy::choice("ACL_MEM_MALLOC_HUGE_FIRST")>, TypeParam> pool{
      provider_ref(place.device)};
  on<backed<acl_malloc_policy::choice("ACL_MEM_MALLOC_NORMAL_ONLY")>, TypeParam> other{
      provider_ref(place.device)};
  for (int i = 0; i < 3; ++i) {
    void* const p = pool.allocate(30_MiB);
    void* const q = other.allocate(30_MiB);
    place.write(place.compute, p, 30_MiB, 1);
    place.write(place.compute, q, 30_MiB, 2);
    place.read(place.compute, p, 30_MiB, 1);
    place.read(place.compute, q, 30_MiB, 2);
  }
  place.finish();
  EXPECT_TRUE(place.is_good());
}

TYPED_TEST(seed_examples, native_small_and_large_blocks_never_share_a_segment) {
  TypeParam place;
  on<pytorch<>, TypeParam> pool{provider_ref(place.device)};
  void* small = nullptr;
  for (int i = 0; i < 4; ++i) small = pool.allocate(512_KiB);
  EXPECT_EQ(reserved(pool), 2_MiB) << "small ones are packed into 2 MiB";
  void* const large = pool.allocate(5_MiB);
  EXPECT_EQ(reserved(pool), 22_MiB) << "1 to 10 MiB are cut off 20";
  EXPECT_EQ(at(pool.allocate(5_MiB)), at(large) + 5_MiB);
  pool.deallocate(small);
  EXPECT_EQ(pool.allocate(512_KiB), small);
  (void)pool.allocate(25_MiB);
  EXPECT_EQ(reserved(pool), 48_MiB) << "larger ones take what they need";
}
TYPED_TEST(seed_examples, native_the_smallest_block_that_fits_serves_its_own_stream_alone) {
  TypeParam place;
  on<pytorch<>, TypeParam> pool{provider_ref(place.device)};
  void* const a = pool.allocate(30_MiB, place.compute);
  void* const b = pool.allocate(24_MiB, place.compute);
  pool.deallocate(a);
  pool.deallocate(b);
  void* const elsewhere = pool.allocate(22_MiB, place.copies);
  EXPECT_TRUE(elsewhere != a && elsewhere != b);
  EXPECT_EQ(pool.allocate(22_MiB, place.compute), b);
  EXPECT_EQ(at(pool.allocate(2_MiB, place.compute)), at(b) + 22_MiB) << "and is cut";
}
TYPED_TEST(seed_examples, native_recovery_releases_one_block_first_and_then_all) {
  TypeParam place{200_MiB};
  on<pytorch<"max_split_size_mb:32">, TypeParam> pool{provider_ref(place.device)};
  void* const kept = pool.allocate(100_MiB);
  place.write(place.compute, kept, 100_MiB, 11);
  pool.deallocate(pool.allocate(1_KiB));
  pool.deallocate(pool.allocate(80_MiB));
  observer_of(pool).events.clear();
  void* const p = pool.allocate(50_MiB);
  EXPECT_EQ(observer_of(pool).actions(),
            (std::vector{action::refused, action::segment_free, action::segment_alloc, action::alloc}));
  EXPECT_EQ(reserved(pool), 152_MiB) << "the small segment stays";
  pool.deallocate(p);
  void* const q = pool.allocate(98_MiB);
  EXPECT_EQ(pool.statistics().num_alloc_retries, 1u);
  EXPECT_EQ(reserved(pool), 198_MiB) << "all that was cached went";
  EXPECT_THROW((void)pool.allocate(10_MiB), out_of_memory);
  EXPECT_EQ(pool.statistics().num_ooms, 1u);
  place.write(place.compute, q, 98_MiB, 12);
  place.read(place.compute, kept, 100_MiB, 11);
  place.finish();
  EXPECT_TRUE(place.is_good());
}
TYPED_TEST(seed_examples, native_a_large_range_maps_memory_as_needed) {
  TypeParam place;
  on<pytorch<"expandable_segments:True">, TypeParam> pool{provider_ref(place.device)};
  char* const first = static_cast<char*>(pool.allocate(5_MiB));
  EXPECT_GE(place.device.held().reserved, place.device.capacity());
  EXPECT_EQ(place.device.used(), 20_MiB);
  char* last = first;
  for (std::size_t i = 1; i < 10; ++i) {
    last = static_cast<char*>(pool.allocate(5_MiB));
    EXPECT_EQ(last, first + i * 5_MiB) << "one after the other";
    place.write(place.compute, last, 5_MiB, static_cast<unsigned>(i));
  }
  EXPECT_EQ(place.device.used(), 60_MiB);
  place.read(place.compute, last, 5_MiB, 9);
  place.finish();
  EXPECT_TRUE(place.is_good());
}

}  // namespace
