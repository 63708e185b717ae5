// SPDX-License-Identifier: Apache-2.0
// The effect of each flag in Paddle's document, on a simulated device and in host memory.
#include <array>
#include <cstddef>

#include <gtest/gtest.h>

#include <tessera/concurrent/deferred_free_queue.hpp>
#include <tessera/interop/paddle_passes.hpp>
#include <tessera/provider/adaptor.hpp>
#include <tessera/provider/limiting.hpp>
#include <tessera/tessera.hpp>

#include "seed_settings.hpp"

namespace {

using namespace tessera;
using namespace conformance;
using action = allocator_event::action;
using paddle_settings = config::paddle::settings;

template <typename Place>
class seed_paddle : public testing::Test {};
using places = testing::Types<simulated_place, host_place>;
TYPED_TEST_SUITE(seed_paddle, places);

TYPED_TEST(seed_paddle, auto_growth_acquires_exactly_and_splits_free_blocks) {
  TypeParam place;
  on<paddle_growing, TypeParam> pool{provider_ref(place.device)};
  char* const chunk = static_cast<char*>(pool.allocate(30_MiB));
  EXPECT_EQ(reserved(pool), 30_MiB);
  pool.deallocate(chunk);
  EXPECT_EQ(reserved(pool), 30_MiB) << "kept for later";
  char* const part = static_cast<char*>(pool.allocate(10_MiB));
  EXPECT_TRUE(part >= chunk && part + 10_MiB <= chunk + 30_MiB);
  place.write(place.compute, part, 10_MiB, 1);
  char* const rest = static_cast<char*>(pool.allocate(20_MiB));
  place.write(place.compute, rest, 20_MiB, 2);
  place.read(place.compute, part, 10_MiB, 1);
  EXPECT_EQ(taken(pool), 1u);
  place.finish();
  EXPECT_TRUE(place.is_good());
}
TYPED_TEST(seed_paddle, a_fraction_of_0_4_is_preallocated_and_larger_blocks_are_released) {
  TypeParam place{512_MiB};
  on<paddle_ahead_by_0_4, TypeParam> pool{provider_ref(place.device)};
  void* const p = pool.allocate(1_MiB);
  const std::size_t chunk = reserved(pool);
  EXPECT_TRUE(chunk > 190_MiB && chunk <= 205_MiB) << chunk;
  void* const q = pool.allocate(100_MiB);
  EXPECT_EQ(taken(pool), 1u);
  pool.deallocate(q);
  EXPECT_EQ(reserved(pool), chunk);
  void* const larger = pool.allocate(230_MiB);
  place.write(place.compute, larger, 230_MiB, 4);
  place.finish();
  EXPECT_GT(reserved(pool), chunk + 230_MiB);
  pool.deallocate(larger);
  EXPECT_EQ(reserved(pool), chunk);
  pool.deallocate(p);
}
TYPED_TEST(seed_paddle, a_fraction_of_0_acquires_each_time) {
  TypeParam place;
  on<paddle_ahead_by_0, TypeParam> pool{provider_ref(place.device)};
  for (std::size_t i = 1; i <= 5; ++i) {
    void* const p = pool.allocate(3_MiB);
    place.write(place.compute, p, 3_MiB, 9);
    place.finish();
    pool.deallocate(p);
    EXPECT_EQ(taken(pool), i);
    EXPECT_EQ(place.device.used(), 0u);
  }
}
TYPED_TEST(seed_paddle, a_limit_is_an_error_though_the_device_has_room_whichever_strategy) {
  constexpr paddle_settings said = paddle_flags<"FLAGS_gpu_memory_limit_mb=100">;
  TypeParam place;
  using bounded = limiting<provider_ref<typename TypeParam::device_type>>;
  bounded device(provider_ref(place.device), said.limit());
  caching_allocator<paddle_growing, provider_ref<bounded>> one{provider_ref(device)};
  caching_allocator<pytorch_family::expandable, provider_ref<bounded>> other{provider_ref(device)};
  EXPECT_NE(one.try_allocate(60_MiB), nullptr);
  EXPECT_THROW((void)other.allocate(60_MiB), out_of_memory);
  EXPECT_NE(other.try_allocate(40_MiB), nullptr);
  EXPECT_THROW((void)one.allocate(1_MiB), out_of_memory);
  EXPECT_EQ(place.device.used(), 100_MiB);
  EXPECT_LT(place.device.used(), place.device.capacity());
}

/// When garbage is freed under the flags.
template <typename Pool>
deferred_free_queue<Pool> collecting(Pool& pool, const paddle_settings& said, stream_id stream = {}) {
  return deferred_free_queue<Pool>(
      pool, {.threshold = said.garbage_threshold, .waits = !said.fast_eager_deletion, .stream = stream});
}
TYPED_TEST(seed_paddle, garbage_is_freed_at_once_or_a_gibibyte_at_a_time_or_never) {
  TypeParam place;
  on<paddle_growing, TypeParam> pool{provider_ref(place.device)};
  constexpr std::size_t half = 512_MiB;  // the size that a variable counts
  {
    auto at_once = collecting(pool, paddle_flags<"FLAGS_eager_delete_tensor_gb=0">);
    at_once.push(pool.allocate(1_MiB), 1);
    EXPECT_EQ(live(pool), 0u);
  }
  {
    auto by_the_gibibyte = collecting(pool, paddle_flags<"FLAGS_eager_delete_tensor_gb=1">);
    by_the_gibibyte.push(pool.allocate(1_MiB), half);
    EXPECT_EQ(live(pool), 1_MiB);
    by_the_gibibyte.push(pool.allocate(1_MiB), half);
    EXPECT_EQ(live(pool), 0u);
  }
  {
    auto never = collecting(pool, paddle_flags<"FLAGS_eager_delete_tensor_gb=-1">);
    for (int i = 0; i < 5; ++i) never.push(pool.allocate(1_MiB), half);
    EXPECT_EQ(live(pool), 5_MiB);
  }
  EXPECT_EQ(live(pool), 0u) << "its destructor frees all";
}
TYPED_TEST(seed_paddle, slow_deletion_waits_for_the_stream_and_fast_deletion_does_not) {
  TypeParam place;
  on<paddle_growing, TypeParam> pool{provider_ref(place.device)};
  auto fast = collecting(pool, paddle_flags<"FLAGS_fast_eager_deletion_mode=True">, place.copies);
  auto slow = collecting(pool, paddle_flags<"FLAGS_fast_eager_deletion_mode=False">, place.copies);
  void* const read = pool.allocate(2_MiB);
  place.write(place.compute, read, 2_MiB, 6);
  place.finish();
  place.hold();
  place.read(place.copies, read, 2_MiB, 6);
  fast.push(pool.allocate(1_MiB), 1_MiB);
  EXPECT_EQ(live(pool), 2_MiB);
  slow.push(read, 2_MiB);
  EXPECT_EQ(live(pool), 2_MiB);
  void* const next = pool.allocate(2_MiB);
  EXPECT_NE(next, read);
  place.write(place.compute, next, 2_MiB, 7);
  place.let_go();
  slow.poll();
  EXPECT_EQ(live(pool), 2_MiB) << "that of the next one";
  EXPECT_TRUE(place.is_good());
}
TYPED_TEST(seed_paddle, an_output_takes_its_inputs_memory_over) {
  TypeParam place;
  on<paddle_growing, TypeParam> pool{provider_ref(place.device)};
  void* const input = pool.allocate(8_MiB);
  place.write(place.compute, input, 8_MiB, 3);
  void* donor = input;
  ASSERT_TRUE(paddle_passes::may_reuse({}, {}));
  void* const output = allocate_in_place(pool, donor, 8_MiB, place.compute);
  EXPECT_EQ(output, input);
  EXPECT_EQ(donor, nullptr) << "given once";
  place.read(place.compute, output, 8_MiB, 3);
  place.finish();
  EXPECT_TRUE(place.is_good());
  EXPECT_EQ(live(pool), 8_MiB);
  void* const larger = allocate_in_place(pool, donor = output, 9_MiB, place.compute);
  EXPECT_NE(larger, output);
  EXPECT_EQ(live(pool), 9_MiB);
}
TEST(seed_paddle_settings, a_fraction_of_0_6_collects_the_largest_variables_until_they_hold_60_percent) {
  const auto collected = [](fraction share) {
    std::array<paddle_passes::variable, 4> all{{{10}, {50}, {25}, {15}}};
    (void)paddle_passes::choose_collected(all, share);
    std::array<bool, 4> chosen{};
    for (std::size_t i = 0; i < 4; ++i) chosen[i] = all[i].is_collected;
    return chosen;
  };
  EXPECT_EQ(
      collected(
          paddle_flags<"FLAGS_memory_fraction_of_eager_deletion=0.6">.memory_fraction_of_eager_deletion),
      (std::array{false, true, true, false}));
  EXPECT_EQ(
      collected(paddle_flags<"FLAGS_memory_fraction_of_eager_deletion=0">.memory_fraction_of_eager_deletion),
      (std::array{false, false, false, false}));
  EXPECT_EQ(
      collected(paddle_flags<"FLAGS_memory_fraction_of_eager_deletion=1">.memory_fraction_of_eager_deletion),
      (std::array{true, true, true, true}));
}

}  // namespace
