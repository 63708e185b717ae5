// SPDX-License-Identifier: Apache-2.0
// What the documents of the systems whose settings we speak show as examples: each setting runs a small program on both
// devices, and does to it what the document says.
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/config/acl_malloc_policy.hpp>
#include <tessera/config/pytorch.hpp>
#include <tessera/tessera.hpp>

#include "places.hpp"
#include "rows.hpp"

namespace {

using namespace tessera;
using namespace conformance;
using action = allocator_event::action;
using config::pytorch_settings;

/// An allocator on a place, whose device outlives it.
template <typename Recipe, typename Place>
using on = caching_allocator<Recipe, provider_ref<typename Place::device_type>, heard>;

/// How often memory came from the device.
template <typename Pool>
std::size_t taken(Pool& pool) {
  return pool.sink().count(action::segment_alloc) + pool.sink().count(action::segment_map);
}

/// A step of a program that learns: it makes blocks, lets another stream copy every second one out, frees them while that
/// waits, and makes as many again, which must not be those. Whether each block held what was written to it.
template <typename Pool, typename Place>
bool step(Pool& pool, Place& place) {
  struct made {
    void* p;
    std::size_t bytes;
    unsigned number;
  };
  unsigned last = 0;
  const auto make = [&] {
    std::vector<made> all;
    for (std::size_t bytes :
         {std::size_t{1}, std::size_t{700}, 300_KiB, 1_MiB, 1_MiB + 1, 3_MiB + 100, 12_MiB, 25_MiB}) {
      all.push_back({pool.allocate(bytes, place.compute), bytes, ++last});
      place.write(place.compute, all.back().p, bytes, last);
    }
    return all;
  };
  const std::vector<made> forward = make();
  place.finish();
  place.hold();
  for (std::size_t i = 0; i < forward.size(); i += 2) {
    EXPECT_TRUE(pool.record_stream(forward[i].p, place.copies));
    place.read(place.copies, forward[i].p, forward[i].bytes, forward[i].number);
  }
  for (auto each = forward.rbegin(); each != forward.rend(); ++each) {
    place.read(place.compute, each->p, each->bytes, each->number);
    pool.deallocate(each->p, each->bytes);
  }
  const std::vector<made> next = make();
  place.let_go();
  for (const made& each : next) {
    place.read(place.compute, each.p, each.bytes, each.number);
    pool.deallocate(each.p, each.bytes);
  }
  place.finish();
  EXPECT_STREQ(pool.audit(), nullptr);
  return place.is_good();
}

template <config::text Conf>
struct pytorch_reading {
  static constexpr pytorch_settings read = said(Conf.view());
  using recipe = pytorch_with<read>;
};
template <config::text Conf>
using pytorch_said = typename pytorch_reading<Conf>::recipe;
template <page_choice Choice>
using backed = with<pytorch_native, back_with<Choice>>;

/// A setting and where its program runs.
template <typename Recipe, typename Place>
struct run {
  using recipe = Recipe;
  using place = Place;
};
template <typename... Recipe>
struct settings {
  using simulated = testing::Types<run<Recipe, simulated_place>...>;
  using on_both = testing::Types<run<Recipe, simulated_place>..., run<Recipe, host_place>...>;
};

// PYTORCH_NPU_ALLOC_CONF: the strings of its document, as far as PyTorch knows their keys, and what the others stand for.
using split_and_collect = pytorch_said<"max_split_size_mb:32,garbage_collection_threshold:0.6">;
using aligned_to_16_kib =
    with<pytorch_expandable,
         grow_in_place<2_MiB, tunable(20_MiB), tunable(memory_limit{}), tunable(std::size_t{16_KiB})>>;
using giant_pages = with<pytorch_native, back_with_giant_pages_first>;
using segments_of_40_mib = with<pytorch_expandable, grow_in_place<2_MiB, tunable(40_MiB)>>;
using rounded_by_4 = pytorch_said<"roundup_power2_divisions:4">;
using rounded_by_a_list = pytorch_said<"roundup_power2_divisions:[256:1,512:2,1024:4,>:8]">;

using everywhere = settings<
    pytorch<>, pytorch_expandable, split_and_collect, aligned_to_16_kib, segments_of_40_mib, rounded_by_4,
    rounded_by_a_list, backed<config::acl_malloc_policy("ACL_MEM_MALLOC_HUGE_FIRST")>,
    backed<config::acl_malloc_policy("ACL_MEM_MALLOC_NORMAL_ONLY")>,
    backed<config::acl_malloc_policy("ACL_MEM_MALLOC_HUGE_FIRST_P2P")>,
    backed<config::acl_malloc_policy("ACL_MEM_MALLOC_NORMAL_ONLY_P2P")>,
    backed<config::acl_malloc_policy("ACL_MEM_TYPE_LOW_BAND_WIDTH")>,
    backed<config::acl_malloc_policy("ACL_MEM_MALLOC_HUGE_FIRST | ACL_MEM_TYPE_HIGH_BAND_WIDTH")>>::on_both;
// A machine need not have huge pages, and may not write where it may only read.
using where_pages_are =
    settings<giant_pages, backed<config::acl_malloc_policy("ACL_MEM_MALLOC_HUGE_ONLY")>,
             backed<config::acl_malloc_policy("ACL_MEM_MALLOC_HUGE_ONLY_P2P")>,
             backed<config::acl_malloc_policy("ACL_MEM_MALLOC_HUGE1G_ONLY")>,
             backed<config::acl_malloc_policy("ACL_MEM_MALLOC_HUGE1G_ONLY_P2P")>,
             backed<config::acl_malloc_policy("ACL_MEM_ACCESS_USER_SPACE_READONLY")>>::simulated;

template <typename Run>
void learn_and_leave_nothing() {
  typename Run::place place;
  {
    on<typename Run::recipe, typename Run::place> pool{provider_ref(place.device)};
    for (int i = 0; i < 2; ++i) EXPECT_TRUE(step(pool, place));
    const std::size_t so_far = taken(pool);
    EXPECT_GT(so_far, 0u);
    EXPECT_TRUE(step(pool, place));
    EXPECT_EQ(taken(pool), so_far) << "what was cached serves the third step";
    EXPECT_EQ(pool.now().live, 0u);
    pool.trim();
    EXPECT_EQ(pool.now().pending, 0u);
    EXPECT_EQ(reserved(pool), 0u);
    EXPECT_EQ(place.device.used(), 0u);
    EXPECT_TRUE(step(pool, place));
  }
  EXPECT_EQ(place.device.used(), 0u);
  EXPECT_EQ(place.device.held().mapped + place.device.held().reserved, 0u);
}
template <typename Run>
class seed_programs : public testing::Test {};
TYPED_TEST_SUITE(seed_programs, everywhere);
TYPED_TEST(seed_programs, learn_and_leave_nothing) { learn_and_leave_nothing<TypeParam>(); }

template <typename Run>
class seed_programs_on_special_pages : public testing::Test {};
TYPED_TEST_SUITE(seed_programs_on_special_pages, where_pages_are);
TYPED_TEST(seed_programs_on_special_pages, learn_and_leave_nothing) { learn_and_leave_nothing<TypeParam>(); }

/// What each setting does, on both devices.
template <typename Place>
class seed_examples : public testing::Test {};
using places = testing::Types<simulated_place, host_place>;
TYPED_TEST_SUITE(seed_examples, places);

TYPED_TEST(seed_examples, a_program_notices_that_a_block_is_reused_too_early) {
  TypeParam place;
  on<with<pytorch<>, reuse_ignoring_streams>, TypeParam> pool{provider_ref(place.device)};
  EXPECT_FALSE(step(pool, place));
}

TYPED_TEST(seed_examples, npu_1_blocks_above_32_mb_are_not_cut) {
  TypeParam place;
  on<split_and_collect, TypeParam> pool{provider_ref(place.device)};
  void* const large = pool.allocate(60_MiB);
  place.write(place.compute, large, 60_MiB, 1);
  pool.deallocate(large);
  EXPECT_NE(pool.allocate(5_MiB), large);
  EXPECT_EQ(pool.allocate(45_MiB), large);
  EXPECT_EQ(pool.now().live, 65_MiB) << "the 60 MiB serve whole";
  place.finish();
}
TYPED_TEST(seed_examples, npu_1_idle_blocks_go_before_more_than_0_6_of_the_limit_is_passed) {
  TypeParam place;
  on<split_and_collect, TypeParam> pool{provider_ref(place.device)};
  pool.settings().growth.most = 100_MiB;
  void* const early = pool.allocate(34_MiB);
  void* const late = pool.allocate(36_MiB);
  pool.deallocate(early);
  for (int i = 0; i < 3; ++i) pool.deallocate(pool.allocate(34_MiB, place.compute));  // used again and again
  EXPECT_EQ(reserved(pool), 70_MiB);
  pool.deallocate(late);
  EXPECT_NE(pool.allocate(30_MiB, place.copies), nullptr);
  EXPECT_EQ(pool.statistics().num_alloc_retries, 0u) << "nothing had run out";
  EXPECT_LE(reserved(pool), 66_MiB) << "10 MiB above 60 had to go";
}
TYPED_TEST(seed_examples, npu_2_large_blocks_begin_at_multiples_of_16_kb) {
  TypeParam place;
  on<aligned_to_16_kib, TypeParam> pool{provider_ref(place.device)};
  for (std::size_t i = 0; i < 6; ++i) {
    void* const p = pool.allocate(2_MiB + i * 512);
    EXPECT_EQ(at(p) % 16_KiB, 0u);
    place.write(place.compute, p, 2_MiB + i * 512, 7);
    (void)pool.allocate(1_MiB + 512);
  }
  place.finish();
  EXPECT_TRUE(place.is_good());
}
TYPED_TEST(seed_examples, npu_3_giant_pages_leave_requests_up_to_1_mb_alone) {
  TypeParam place;
  on<giant_pages, TypeParam> pool{provider_ref(place.device)};
  void* const p = pool.allocate(1_MiB);
  place.write(place.compute, p, 1_MiB, 3);
  EXPECT_EQ(reserved(pool), 2_MiB);
  if (place.device.capacity() > 1_GiB) {
    (void)pool.allocate(1_MiB + 1);
    EXPECT_EQ(reserved(pool), 1_GiB + 2_MiB);
  }
  place.finish();
}
TYPED_TEST(seed_examples, npu_4_memory_comes_40_mb_at_a_time) {
  TypeParam place;
  on<segments_of_40_mib, TypeParam> pool{provider_ref(place.device)};
  (void)pool.allocate(5_MiB);
  EXPECT_EQ(reserved(pool), 40_MiB);
  (void)pool.allocate(36_MiB);
  EXPECT_EQ(reserved(pool), 80_MiB);
  (void)pool.allocate(1_KiB);
  EXPECT_EQ(reserved(pool), 82_MiB) << "small blocks keep their own";
}
TYPED_TEST(seed_examples, npu_5_sizes_that_are_much_alike_share_a_block) {
  TypeParam place;
  on<rounded_by_4, TypeParam> pool{provider_ref(place.device)};
  void* const p = pool.allocate(33_MiB);
  for (std::size_t bytes : {34_MiB, 36_MiB, 40_MiB, 33_MiB + 1}) {
    pool.deallocate(p);
    EXPECT_EQ(pool.allocate(bytes), p);
    place.write(place.compute, p, bytes, 5);
  }
  EXPECT_EQ(taken(pool), 1u);
  place.finish();
}
TYPED_TEST(seed_examples, npu_5_a_list_rounds_large_sizes_alone) {
  const policies<rounded_by_a_list> chosen;
  EXPECT_EQ(chosen.rounding.block_size(300_MiB), 300_MiB);
  EXPECT_EQ(chosen.rounding.block_size(600_MiB), 768_MiB);
  EXPECT_EQ(chosen.rounding.block_size(1100_MiB), 1280_MiB);
  EXPECT_EQ(chosen.rounding.block_size(2049_MiB), 2304_MiB);
  TypeParam place;
  on<rounded_by_a_list, TypeParam> pool{provider_ref(place.device)};
  (void)pool.allocate(33_MiB);
  EXPECT_EQ(reserved(pool), 34_MiB);
}

TYPED_TEST(seed_examples, acl_huge_pages_that_have_run_out_are_made_up_for_by_normal_ones) {
  TypeParam place;
  on<backed<config::acl_malloc_policy("ACL_MEM_MALLOC_HUGE_FIRST")>, TypeParam> pool{
      provider_ref(place.device)};
  on<backed<config::acl_malloc_policy("ACL_MEM_MALLOC_NORMAL_ONLY")>, TypeParam> other{
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

TYPED_TEST(seed_examples, paddle_a_fraction_of_0_asks_the_device_each_time) {
  TypeParam place;
  on<passthrough, TypeParam> pool{provider_ref(place.device)};
  for (std::size_t i = 1; i <= 5; ++i) {
    void* const p = pool.allocate(3_MiB);
    place.write(place.compute, p, 3_MiB, 9);
    place.finish();
    pool.deallocate(p);
    EXPECT_EQ(taken(pool), i);
    EXPECT_EQ(place.device.used(), 0u);
  }
}
TYPED_TEST(seed_examples, paddle_a_limit_is_an_error_though_the_device_has_room) {
  TypeParam place;
  on<pytorch<>, TypeParam> pool{provider_ref(place.device)};
  pool.settings().growth.most = 100_MiB;
  void* const p = pool.allocate(60_MiB);
  EXPECT_THROW((void)pool.allocate(60_MiB), out_of_memory);
  EXPECT_EQ(pool.sink().count(action::refused), 0u);
  EXPECT_LT(place.device.used() + 60_MiB, place.device.capacity());
  pool.deallocate(p);
  EXPECT_EQ(pool.allocate(60_MiB), p);
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
TYPED_TEST(seed_examples, native_what_ran_out_is_got_back_one_block_first_and_then_all) {
  TypeParam place{200_MiB};
  on<pytorch_said<"max_split_size_mb:32">, TypeParam> pool{provider_ref(place.device)};
  void* const kept = pool.allocate(100_MiB);
  place.write(place.compute, kept, 100_MiB, 11);
  pool.deallocate(pool.allocate(1_KiB));
  pool.deallocate(pool.allocate(80_MiB));
  pool.sink().events.clear();
  void* const p = pool.allocate(50_MiB);
  EXPECT_EQ(pool.sink().actions(),
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
TYPED_TEST(seed_examples, native_a_range_is_large_holds_nothing_and_takes_memory_as_it_needs_it) {
  TypeParam place;
  on<pytorch_said<"expandable_segments:True">, TypeParam> pool{provider_ref(place.device)};
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
