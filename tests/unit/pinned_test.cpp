// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <type_traits>

#include <gtest/gtest.h>

#include <tessera/config/pytorch_conf.hpp>
#include <tessera/config/torch_npu_conf.hpp>
#include <tessera/configured.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

namespace {

using namespace tessera;

template <typename Recipe>
class pinned_recipes : public testing::Test {};
using all = testing::Types<pinned, pinned_packed, torch_npu_family::pinned_expandable>;
TYPED_TEST_SUITE(pinned_recipes, all);

TYPED_TEST(pinned_recipes, reuse_a_block_at_once_on_any_stream_if_none_was_recorded) {
  caching_allocator<TypeParam, simulated_device> pool;
  pool.provider().hold_events(true);
  void* const p = pool.allocate(1_MiB, stream_id{1});
  pool.deallocate(p);
  EXPECT_EQ(pool.allocate(1_MiB, stream_id{2}), p);
}

TYPED_TEST(pinned_recipes, keep_a_block_pending_for_its_own_stream_too) {
  caching_allocator<TypeParam, simulated_device> pool;
  for (stream_id stream : {stream_id{}, stream_id{3}}) {
    void* const p = pool.allocate(1_MiB, stream);
    ASSERT_TRUE(pool.record_stream(p, stream));
    pool.provider().submit(stream, 1'000'000'000);
    pool.deallocate(p);
    EXPECT_GE(pool.current_usage().pending(), 1_MiB);
    void* const other = pool.allocate(1_MiB, stream);
    EXPECT_NE(other, p);
    pool.deallocate(other);
    pool.provider().advance(1'000'000'000);
    pool.deallocate(pool.allocate(1_MiB, stream));
    EXPECT_EQ(pool.current_usage().pending(), 0u);
    EXPECT_STREQ(pool.audit(), nullptr);
  }
}

TEST(pinned, keeps_sizes_of_different_classes_apart) {
  caching_allocator<pinned, simulated_device> pool;
  void* const large = pool.allocate(3_MiB);
  pool.deallocate(large);
  EXPECT_NE(pool.allocate(2_MiB), large);
  EXPECT_EQ(pool.allocate(2_MiB + 1), large);
  EXPECT_EQ(pool.current_usage().allocated, 6_MiB);
}

TEST(pinned, takes_and_reuses_whole_pages_of_the_host) {
  caching_allocator<pinned, simulated_device> pool(
      simulated_device{simulated_device::options{.granularity = 64_KiB}});
  void* const p = pool.allocate(8);
  pool.deallocate(p);
  EXPECT_EQ(pool.allocate(8), p);
  EXPECT_EQ(pool.current_usage().reserved, 64_KiB);
}

TEST(pinned, acquires_again_after_the_cache_is_emptied) {
  caching_allocator<pinned, simulated_device> pool(
      simulated_device{simulated_device::options{.capacity = 6_MiB}});
  pool.deallocate(pool.allocate(4_MiB));
  EXPECT_NE(pool.allocate(2_MiB), nullptr);
  EXPECT_NE(pool.allocate(1_MiB), nullptr);
  EXPECT_EQ(pool.try_allocate(4_MiB), nullptr);
  EXPECT_EQ(pool.current_usage().reserved, 3_MiB);
}

TEST(pinned, releases_a_large_block_once_its_streams_complete) {
  caching_allocator<pinned, simulated_device> pool(
      simulated_device{}, pinned::configured(config::pytorch::settings{.pinned_max_cached_size = 32_MiB}));
  void* const p = pool.allocate(64_MiB);
  ASSERT_TRUE(pool.record_stream(p, stream_id{1}));
  pool.provider().submit(stream_id{1}, 1'000'000'000);
  pool.deallocate(p);
  EXPECT_EQ(pool.current_usage().reserved, 64_MiB);
  EXPECT_FALSE(pool.process_events());
  pool.provider().advance(1'000'000'000);
  EXPECT_TRUE(pool.process_events());
  EXPECT_EQ(pool.current_usage().reserved, 0u);
}

TEST(pinned, is_configured_by_the_text_for_the_device) {
  static_assert(std::is_same_v<pytorch_pinned<>, pinned> && std::is_same_v<torch_npu_pinned<>, pinned>);
  caching_allocator<pytorch_pinned<"max_split_size_mb:64,pinned_max_round_threshold_mb:64">, simulated_device>
      cuda;
  (void)cuda.allocate(80_MiB);
  EXPECT_EQ(cuda.current_usage().reserved, 80_MiB);
  caching_allocator<torch_npu_pinned<"pinned_max_cached_size_mb:32">, simulated_device> npu;
  npu.deallocate(npu.allocate(64_MiB));
  EXPECT_EQ(npu.current_usage().reserved, 0u);
  caching_allocator<torch_npu_pinned<"pin_memory_expandable_segments:True">, simulated_device> ranges;
  (void)ranges.allocate(1);
  EXPECT_EQ(ranges.current_usage().reserved, 20_MiB);
  EXPECT_EQ(ranges.current_usage().allocated, 512u);
}

TEST(pinned, is_chosen_when_the_program_runs) {
  for (bool expandable : {false, true}) {
    configured<torch_npu_family::pinned_family, caching_allocator<pytorch<>, simulated_device>> pool(
        config::torch_npu::settings{.pin_memory_expandable_segments = expandable});
    EXPECT_NE(pool.allocate(40_MiB), nullptr);
    EXPECT_EQ(pool.current_usage().reserved, expandable ? 60_MiB : 64_MiB);
  }
}

TEST(pinned, refuses_settings_for_another_recipe) {
  const config::torch_npu::settings expandable{.pin_memory_expandable_segments = true};
  EXPECT_DEATH((void)pinned::configured(expandable), "pinned::configured: settings for another recipe");
  EXPECT_DEATH((void)torch_npu_family::pinned_expandable::configured(config::torch_npu::settings{}),
               "pinned_expandable::configured: settings for another recipe");
}

TEST(pinned_packed, pins_exactly_the_request_and_classes_the_next_power_of_two) {
  caching_allocator<pinned, simulated_device> classes;
  caching_allocator<pinned_packed, simulated_device> packed;
  (void)classes.allocate(5_GiB);
  (void)packed.allocate(5_GiB);
  EXPECT_EQ(classes.current_usage().reserved, 8_GiB);
  EXPECT_EQ(packed.current_usage().reserved, 5_GiB);
  (void)packed.allocate(129_MiB + 512_KiB);
  EXPECT_EQ(packed.current_usage().reserved, 5_GiB + 130_MiB);
}

TEST(pinned_packed, lets_sizes_that_differ_share_memory) {
  caching_allocator<pinned_packed, simulated_device> pool;
  void* const whole = pool.allocate(64_MiB);
  pool.deallocate(whole);
  EXPECT_EQ(pool.allocate(40_MiB), whole);
  EXPECT_NE(pool.allocate(24_MiB), nullptr);
  EXPECT_EQ(pool.current_usage().reserved, 64_MiB);
}

}  // namespace
