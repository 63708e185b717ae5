// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/concurrent/locked.hpp>
#include <tessera/concurrent/per_stream.hpp>
#include <tessera/law/recipe_laws.hpp>
#include <tessera/policy/chunks.hpp>
#include <tessera/provider/adaptor.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/recipe/paddle.hpp>
#include <tessera/tessera.hpp>

namespace {

using namespace tessera;
using paddle_settings = config::paddle::settings;

using auto_growth = caching_allocator<paddle_family::auto_growth, simulated_device>;
using naive = caching_allocator<paddle_family::naive_best_fit, simulated_device>;

simulated_device of(std::size_t capacity) {
  return simulated_device(simulated_device::options{.capacity = capacity, .granularity = 256});
}

auto_growth growing(const paddle_settings& settings, std::size_t capacity = 16_GiB) {
  return auto_growth(of(capacity), paddle_family::auto_growth::configured(settings));
}
naive preallocating(paddle_settings settings, std::size_t capacity = 16_GiB) {
  settings.naive_best_fit = true;
  return naive(of(capacity), paddle_family::naive_best_fit::configured(settings));
}

std::uintptr_t number(const void* p) { return reinterpret_cast<std::uintptr_t>(p); }

static_assert(law::recipe<paddle_family::auto_growth>() && law::recipe<paddle_family::naive_best_fit>());
static_assert(law::recipe<paddle_family::auto_growth>(paddle_family::auto_growth::configured(
    {.auto_growth_chunk_size = 10_MiB, .free_idle_chunk = true, .free_when_no_cache_hit = true})));
static_assert(law::recipe<paddle_family::auto_growth>(paddle_family::auto_growth::configured(
    {.small_pool_size = 1_MiB, .small_pool_chunk_size = 2_MiB, .large_pool_chunk_size = 16_MiB})));
static_assert(law::recipe<paddle_family::naive_best_fit>(paddle_family::naive_best_fit::configured(
    {.naive_best_fit = true, .initial_gpu_memory = 100_MiB, .reallocate_gpu_memory = 50_MiB})));
static_assert(law::recipe<paddle_family::naive_best_fit>(paddle_family::naive_best_fit::configured(
    {.naive_best_fit = true, .fraction_of_gpu_memory = percent(0)})));

constexpr paddle_settings preset_growth{.auto_growth_chunk_size = 10_MiB};
constexpr paddle_settings preset_naive{.naive_best_fit = true, .initial_gpu_memory = 10_MiB};
static_assert(recipe::well_formed<paddle_family::under<preset_growth>> &&
              recipe::well_formed<paddle_family::under<preset_naive>>);
static_assert(std::is_same_v<paddle_family::under<preset_growth>::base, paddle_family::auto_growth>);
static_assert(std::is_same_v<paddle_family::under<preset_naive>::base, paddle_family::naive_best_fit>);

TEST(paddle_death, settings_and_recipe_must_fit) {
  EXPECT_DEATH((void)paddle_family::auto_growth::configured({.naive_best_fit = true}),
               "paddle_auto_growth::configured: settings for another recipe");
  EXPECT_DEATH((void)paddle_family::naive_best_fit::configured({}),
               "paddle_naive_best_fit::configured: settings for another recipe");
}

TEST(paddle_with, begins_with_its_settings) {
  caching_allocator<paddle_family::under<preset_growth>, simulated_device> growing;
  growing.deallocate(growing.allocate(1));
  EXPECT_EQ(growing.current_usage().reserved, 10_MiB);
  caching_allocator<paddle_family::under<preset_naive>, simulated_device> other;
  other.deallocate(other.allocate(1));
  EXPECT_EQ(other.current_usage().reserved, 10_MiB);
}

TEST(paddle_auto_growth, takes_its_numbers_from_the_settings) {
  const auto chosen = paddle_family::auto_growth::configured({.gpu_memory_limit = 3_GiB,
                                                              .auto_growth_chunk_size = 10_MiB,
                                                              .free_idle_chunk = true,
                                                              .free_when_no_cache_hit = true});
  EXPECT_EQ(chosen.growth.large.get(), 10_MiB);
  EXPECT_EQ(chosen.growth.limit.on(16_GiB), 3_GiB);
  EXPECT_EQ(chosen.pools.boundary.get(), 0u);
  EXPECT_TRUE(chosen.eviction.at_free);
  EXPECT_TRUE(chosen.eviction.before_growth);
  EXPECT_FALSE(chosen.recovery.accepts_exact_size);
  EXPECT_EQ(paddle_family::auto_growth::configured({}).growth.limit.on(16_GiB), unlimited);
}

TEST(paddle_auto_growth, two_pools_have_chunk_sizes_of_their_own_and_none_means_just_the_block) {
  auto pool =
      growing({.auto_growth_chunk_size = 10_MiB, .small_pool_size = 1_MiB, .small_pool_chunk_size = 2_MiB});
  void* const small = pool.allocate(1_MiB);
  EXPECT_EQ(pool.current_usage().reserved, 2_MiB);
  void* const large = pool.allocate(1_MiB + 1);
  EXPECT_EQ(pool.current_usage().reserved, 3_MiB + 256);
  EXPECT_EQ(pool.statistics().pool[0].allocation.current, 1);
  EXPECT_EQ(pool.statistics().pool[1].allocation.current, 1);
  void* const second = pool.allocate(1_MiB);
  EXPECT_EQ(pool.current_usage().reserved, 3_MiB + 256);
  for (void* p : {small, large, second}) pool.deallocate(p);
  EXPECT_STREQ(pool.audit(), nullptr);
}

TEST(paddle_auto_growth, the_chunk_of_a_pool_counts_only_with_two_pools) {
  auto pool = growing(
      {.auto_growth_chunk_size = 4_MiB, .small_pool_chunk_size = 2_MiB, .large_pool_chunk_size = 16_MiB});
  pool.deallocate(pool.allocate(1));
  EXPECT_EQ(pool.current_usage().reserved, 4_MiB);
}

TEST(paddle_auto_growth, splits_from_the_high_end) {
  auto pool = growing({.auto_growth_chunk_size = 1_MiB});
  void* const high = pool.allocate(256);
  void* const below = pool.allocate(512);
  EXPECT_EQ(number(high) - number(below), 512u);
  pool.deallocate(high);
  EXPECT_EQ(pool.allocate(100), high);
}

TEST(paddle_auto_growth, releases_idle_chunks_after_every_free_if_configured) {
  auto pool = growing({.auto_growth_chunk_size = 1_MiB, .free_idle_chunk = true});
  void* const a = pool.allocate(1_MiB);
  void* const b = pool.allocate(512_KiB);
  void* const c = pool.allocate(256);
  pool.deallocate(a);
  EXPECT_EQ(pool.current_usage().reserved, 1_MiB);
  pool.deallocate(b);
  EXPECT_EQ(pool.current_usage().reserved, 1_MiB);
  pool.deallocate(c);
  EXPECT_EQ(pool.current_usage().reserved, 0u);
  EXPECT_EQ(pool.provider().calls().release, 2u);
}

TEST(paddle_auto_growth, requests_only_the_block_if_configured_after_all_is_released) {
  auto chosen = paddle_family::auto_growth::configured({.auto_growth_chunk_size = 10_MiB});
  chosen.recovery.accepts_exact_size = true;
  auto_growth pool(of(18_MiB), chosen);
  void* const first = pool.allocate(6_MiB);
  pool.deallocate(first);
  void* const large = pool.allocate(11_MiB);  // releases the idle chunk, and takes the bytes that it needs
  EXPECT_EQ(pool.current_usage().reserved, 11_MiB);
  void* const small = pool.allocate(1_MiB);
  EXPECT_NE(small, nullptr);
  EXPECT_EQ(pool.current_usage().reserved, 12_MiB);
  EXPECT_EQ(pool.try_allocate(7_MiB), nullptr);
  for (void* p : {large, small}) pool.deallocate(p);
  void* const chunk = pool.allocate(12_MiB);
  EXPECT_EQ(pool.current_usage().reserved, 12_MiB);
  pool.deallocate(chunk);
  EXPECT_STREQ(pool.audit(), nullptr);
}

TEST(paddle_auto_growth, settles_within_its_limit_alone) {
  auto chosen =
      paddle_family::auto_growth::configured({.gpu_memory_limit = 8_MiB, .auto_growth_chunk_size = 10_MiB});
  auto_growth strict({}, chosen);
  EXPECT_EQ(strict.try_allocate(1_MiB), nullptr);
  chosen.recovery.accepts_exact_size = true;
  auto_growth content({}, chosen);
  EXPECT_NE(content.try_allocate(8_MiB), nullptr);
  EXPECT_EQ(content.try_allocate(1), nullptr);
  EXPECT_EQ(content.current_usage().reserved, 8_MiB);
}

TEST(chunk_schedule, leaves_a_twentieth_and_small_rests) {
  EXPECT_EQ(chunk_schedule::available(1000_MiB), 950_MiB);
  EXPECT_EQ(chunk_schedule::available(1039), 988u);
  EXPECT_EQ(chunk_schedule::available(268), 0u);
  EXPECT_EQ(chunk_schedule::available(269), 256u);
  EXPECT_EQ(chunk_schedule::available(0), 0u);
}

TEST(chunk_schedule, takes_numbers_before_shares) {
  constexpr chunk_schedule plan{.first = 5_MiB, .share = percent(50)};
  EXPECT_EQ(plan.next(1000_MiB, true), 5_MiB);
  EXPECT_EQ(plan.next(1000_MiB, false), 475_MiB);
  EXPECT_EQ(plan.largest_pooled(1000_MiB), 475_MiB);
  EXPECT_EQ(plan.largest_pooled(2_MiB), 5_MiB);
}

TEST(chunk_schedule, fails_if_a_chunk_cannot_be_acquired) {
  constexpr chunk_schedule plan{.first = 980_MiB, .further = 2000_MiB};
  EXPECT_EQ(plan.next(1000_MiB, true), 1000_MiB + 1);
  EXPECT_EQ(plan.next(1000_MiB, false), 2000_MiB);
  EXPECT_EQ(chunk_schedule{}.next(100, true), 101u);
}

TEST(paddle_naive_best_fit, takes_its_numbers_from_the_settings) {
  const auto chosen = paddle_family::naive_best_fit::configured({.naive_best_fit = true,
                                                                 .fraction_of_gpu_memory = percent(40),
                                                                 .initial_gpu_memory = 7_MiB,
                                                                 .reallocate_gpu_memory = 3_MiB,
                                                                 .gpu_memory_limit = 3_GiB});
  constexpr chunk_schedule plan{7_MiB, 3_MiB, percent(40)};
  EXPECT_EQ(chosen.growth.schedule.get(), plan);
  EXPECT_EQ(chosen.eviction.schedule.get(), plan);
  EXPECT_EQ(chosen.growth.limit.on(16_GiB), 3_GiB);
}

TEST(paddle_naive_best_fit, further_chunks_are_a_share_of_the_rest) {
  auto pool = preallocating({.fraction_of_gpu_memory = percent(50)}, 1000_MiB);
  void* const first = pool.allocate(475_MiB - 64);
  EXPECT_EQ(pool.current_usage().reserved, 475_MiB);
  void* const second = pool.allocate(1);
  const std::size_t available = chunk_schedule::available(525_MiB);
  EXPECT_EQ(pool.current_usage().reserved, 475_MiB + align_up(available / 2, 256));
  for (void* p : {first, second}) pool.deallocate(p);
  EXPECT_EQ(pool.provider().calls().release, 0u);
}

TEST(paddle_naive_best_fit, a_chunk_that_cannot_be_had_fails_a_request_that_needs_one) {
  auto pool = preallocating({.initial_gpu_memory = 700_MiB, .reallocate_gpu_memory = 400_MiB}, 1000_MiB);
  void* const first = pool.allocate(700_MiB - 64);
  EXPECT_EQ(pool.try_allocate(1), nullptr);
  pool.deallocate(first);
  void* const again = pool.allocate(1);
  EXPECT_EQ(again, first);
  EXPECT_EQ(pool.current_usage().reserved, 700_MiB);
}

TEST(paddle_naive_best_fit, refuses_everything_if_its_chunks_are_impossible) {
  auto pool = preallocating({.initial_gpu_memory = 980_MiB}, 1000_MiB);
  EXPECT_EQ(pool.try_allocate(1), nullptr);
  EXPECT_EQ(pool.try_allocate(990_MiB), nullptr);
  auto other = preallocating({.initial_gpu_memory = 1_MiB, .reallocate_gpu_memory = 980_MiB}, 1000_MiB);
  EXPECT_EQ(other.try_allocate(1), nullptr);
  EXPECT_EQ(other.current_usage().reserved, 0u);
}

TEST(paddle_naive_best_fit, its_limit_stands_for_the_memory_of_the_device) {
  auto pool = preallocating({.gpu_memory_limit = 1000_MiB}, 16_GiB);
  pool.deallocate(pool.allocate(1));
  EXPECT_EQ(pool.current_usage().reserved, 874_MiB);
}

TEST(paddle_naive_best_fit, a_pending_direct_segment_is_released_once_its_stream_completes) {
  auto pool = preallocating({.initial_gpu_memory = 10_MiB, .reallocate_gpu_memory = 10_MiB});
  void* const kept = pool.allocate(1);
  void* const direct = pool.allocate(20_MiB);
  ASSERT_TRUE(pool.record_stream(direct, stream_id{3}));
  pool.provider().submit(stream_id{3}, 1'000'000'000);
  pool.deallocate(direct);
  EXPECT_EQ(pool.current_usage().reserved, 30_MiB + 256);
  pool.provider().advance(1'000'000'000);
  pool.deallocate(pool.allocate(1));
  EXPECT_EQ(pool.current_usage().reserved, 10_MiB);
  pool.deallocate(kept);
  EXPECT_STREQ(pool.audit(), nullptr);
}

// What the device had left at a growth decides which blocks are larger than a chunk, also when they are freed.
TEST(paddle_naive_best_fit, releases_a_block_larger_than_a_chunk_beside_other_programs) {
  simulated_device device({.capacity = 80_GiB});
  void* const others = device.acquire(40_GiB);
  const auto settings = paddle_family::naive_best_fit::configured({.naive_best_fit = true});
  using beside = caching_allocator<paddle_family::naive_best_fit, provider_ref<simulated_device>>;
  beside pool{provider_ref(device), settings};
  void* const direct = pool.allocate(36_GiB);
  EXPECT_EQ(pool.current_usage().reserved, 36_GiB + 512);
  ASSERT_TRUE(device.release(others, 40_GiB));
  pool.deallocate(direct);
  EXPECT_EQ(pool.current_usage().reserved, 0u);

  void* const chunk = pool.allocate(30_GiB);
  const std::size_t reserved = pool.current_usage().reserved;
  pool.deallocate(chunk);
  EXPECT_EQ(pool.current_usage().reserved, reserved) << "a chunk stays";
  pool.trim();

  // Settings that are assigned in between know nothing of the device.
  ASSERT_NE(device.acquire(40_GiB), nullptr);
  const auto releases_it = [&settings](auto& memory) {
    void* const other = memory.allocate(36_GiB);
    memory.visit_policies([&settings](auto& own) { own = settings; });
    memory.deallocate(other);
    EXPECT_EQ(memory.current_usage().reserved, 0u);
  };
  beside plain{provider_ref(device), settings};
  releases_it(plain);
  concurrent::locked<beside> locked{provider_ref(device), settings};
  releases_it(locked);
  concurrent::per_stream<beside> arenas{provider_ref(device), settings};
  releases_it(arenas);
}

/// Chunks whose sizes the device rounds to multiples of its granule do not count as direct segments.
TEST(paddle_naive_best_fit, keeps_chunks_that_a_coarse_device_rounds_up) {
  paddle_settings settings{.naive_best_fit = true, .fraction_of_gpu_memory = percent(33)};
  naive pool(simulated_device({.capacity = 1000_MiB, .granularity = 1_MiB}),
             paddle_family::naive_best_fit::configured(settings));
  std::vector<void*> blocks;
  for (int i = 0; i < 6; ++i) blocks.push_back(pool.allocate(100_MiB));
  const std::size_t before = pool.current_usage().reserved;
  for (void* p : blocks) pool.deallocate(p);
  EXPECT_EQ(pool.current_usage().reserved, before);
  EXPECT_EQ(pool.provider().calls().release, 0u);
}

TEST(paddle_naive_best_fit, serves_all_streams_from_one_chunk) {
  caching_allocator<paddle_family::naive_best_fit, simulated_device> pool{
      simulated_device{simulated_device::options{.capacity = 10_GiB}}};
  void* const small = pool.allocate(1_KiB);
  const std::size_t reserved = pool.current_usage().reserved;
  void* const large = pool.try_allocate(2_GiB, stream_id{1});
  ASSERT_NE(large, nullptr);
  EXPECT_EQ(pool.current_usage().reserved, reserved);
  pool.deallocate(small);
  pool.deallocate(large);
}

TEST(paddle_naive_best_fit, takes_its_share_of_the_memory_that_others_leave) {
  simulated_device one{simulated_device::options{.capacity = 10_GiB}};
  simulated_device other = one.another_process();
  void* const theirs = other.acquire(5_GiB);
  caching_allocator<paddle_family::naive_best_fit, provider_ref<simulated_device>> pool{provider_ref(one)};
  void* const p = pool.try_allocate(1_KiB);
  ASSERT_NE(p, nullptr);
  EXPECT_LT(pool.current_usage().reserved, 5_GiB);
  EXPECT_GT(pool.current_usage().reserved, 4_GiB);
  pool.deallocate(p);
  EXPECT_TRUE(other.release(theirs, 5_GiB));
}

}  // namespace
