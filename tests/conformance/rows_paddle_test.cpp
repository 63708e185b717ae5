// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/concurrent/deferred_free_queue.hpp>
#include <tessera/concurrent/locked.hpp>
#include <tessera/concurrent/per_stream.hpp>
#include <tessera/concurrent/waiting.hpp>
#include <tessera/interop/paddle_passes.hpp>
#include <tessera/provider/host_pinned.hpp>
#include <tessera/provider/limiting.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

/// The rows of the compatibility matrix about Paddle's allocators.
namespace {

using namespace tessera;
using namespace std::chrono_literals;
using paddle_settings = config::paddle::settings;

simulated_device device_of(std::size_t capacity) {
  return simulated_device({.capacity = capacity, .granularity = 256});
}
std::uintptr_t number(const void* p) { return reinterpret_cast<std::uintptr_t>(p); }

using naive = caching_allocator<paddle_family::naive_best_fit, simulated_device>;
naive preallocating(paddle_settings settings, std::size_t capacity = 16_GiB) {
  settings.naive_best_fit = true;
  return naive(device_of(capacity), paddle_family::naive_best_fit::configured(settings));
}
/// Requests this many bytes and frees them.
///   Returns:  whether the memory stayed reserved
template <typename Pool>
bool is_pooled(Pool& pool, std::size_t bytes) {
  const std::size_t before = pool.current_usage().reserved;
  const std::uint64_t calls = pool.provider().calls().release;
  pool.deallocate(pool.allocate(bytes));
  const bool stayed = pool.provider().calls().release == calls;
  EXPECT_TRUE(stayed || pool.current_usage().reserved == before);
  return stayed;
}

using growing = caching_allocator<paddle_family::auto_growth, simulated_device>;
growing auto_growth(const paddle_settings& settings, std::size_t capacity = 16_GiB) {
  return growing(device_of(capacity), paddle_family::auto_growth::configured(settings));
}

// Chunked best fit.

TEST(paddle_row, n01_a_request_of_192_takes_256_and_one_of_193_takes_512) {
  auto pool = preallocating({.initial_gpu_memory = 1_MiB});
  void* const first = pool.allocate(192);
  EXPECT_EQ(pool.current_usage().allocated, 256u);
  void* const second = pool.allocate(193);
  EXPECT_EQ(pool.current_usage().allocated, 256u + 512u);
  // The user's bytes begin with the block. In Paddle, they begin 64 bytes after that.
  EXPECT_EQ(number(second) - number(first), 256u);
  pool.deallocate(first), pool.deallocate(second);
}

TEST(paddle_row, n02_the_first_chunk_is_92_percent_of_free_memory_less_a_twentieth) {
  auto pool = preallocating({}, 1000_MiB);
  pool.deallocate(pool.allocate(1));
  EXPECT_EQ(pool.current_usage().reserved, 874_MiB);
  auto odd = preallocating({}, 1_GiB);
  odd.deallocate(odd.allocate(1));
  const std::size_t available = 1_GiB - 1_GiB / 20;
  EXPECT_EQ(odd.current_usage().reserved,
            align_up(static_cast<std::size_t>(0.92 * static_cast<double>(available)), 256));
}

TEST(paddle_row, n03_of_chunks_of_100_and_50_the_larger_one_is_the_threshold_before_and_after) {
  auto pool = preallocating({.initial_gpu_memory = 100_MiB, .reallocate_gpu_memory = 50_MiB});
  void* const kept = pool.allocate(10_MiB);
  EXPECT_EQ(pool.current_usage().reserved, 100_MiB);
  EXPECT_TRUE(is_pooled(pool, 80_MiB));
  EXPECT_EQ(pool.current_usage().reserved, 100_MiB);
  EXPECT_TRUE(is_pooled(pool, 99_MiB));
  EXPECT_FALSE(is_pooled(pool, 101_MiB));
  EXPECT_FALSE(is_pooled(pool, 1_GiB));
  EXPECT_TRUE(is_pooled(pool, 99_MiB));
  EXPECT_FALSE(is_pooled(pool, 101_MiB));
  pool.deallocate(kept);
}

TEST(paddle_row, n04_the_threshold_is_compared_with_the_padded_size) {
  auto pool = preallocating({.initial_gpu_memory = 100_MiB, .reallocate_gpu_memory = 50_MiB});
  EXPECT_TRUE(is_pooled(pool, 100_MiB - 64));
  EXPECT_FALSE(is_pooled(pool, 100_MiB - 63));
  EXPECT_FALSE(is_pooled(pool, 100_MiB));
}

TEST(paddle_row, n05_of_chunks_of_5_and_10_the_larger_one_is_the_threshold) {
  auto pool = preallocating({.initial_gpu_memory = 5_MiB, .reallocate_gpu_memory = 10_MiB});
  for (const std::size_t mib : {6u, 8u, 9u}) EXPECT_TRUE(is_pooled(pool, mib << 20)) << mib;
  EXPECT_FALSE(is_pooled(pool, 11_MiB));
}

TEST(paddle_row, n06_a_direct_block_is_one_call_of_the_device_each_way) {
  auto pool = preallocating({.initial_gpu_memory = 10_MiB, .reallocate_gpu_memory = 10_MiB});
  void* const pooled = pool.allocate(1_MiB);
  const usage before = pool.current_usage();
  void* const direct = pool.allocate(20_MiB);
  EXPECT_EQ(pool.provider().calls().acquire, 2u);
  EXPECT_EQ(pool.current_usage().cached, before.cached);
  pool.deallocate(direct);
  EXPECT_EQ(pool.provider().calls().release, 1u);
  EXPECT_EQ(pool.current_usage(), before);
  pool.deallocate(pooled);
}

TEST(paddle_row, n07_with_a_fraction_of_0_every_request_acquires_and_every_free_releases) {
  auto pool = preallocating({.fraction_of_gpu_memory = percent(0)});
  std::vector<void*> blocks;
  for (std::size_t i = 1; i <= 10; ++i) {
    blocks.push_back(pool.allocate(i * 1000));
    EXPECT_EQ(pool.current_usage().cached, 0u);
  }
  EXPECT_EQ(pool.provider().calls().acquire, 10u);
  for (void* p : blocks) {
    pool.deallocate(p);
    EXPECT_EQ(pool.current_usage().cached, 0u);
  }
  EXPECT_EQ(pool.provider().calls().release, 10u);
  EXPECT_EQ(pool.current_usage().reserved, 0u);
}

TEST(paddle_row, n08_a_first_chunk_larger_than_the_device_fails_a_request_of_1_byte) {
  auto pool = preallocating({.initial_gpu_memory = 4096_MiB}, 1000_MiB);
  EXPECT_EQ(pool.try_allocate(1), nullptr);
  try {
    (void)pool.allocate(1);
    ADD_FAILURE() << "there is no such chunk";
  } catch (const out_of_memory& told) {
    EXPECT_EQ(told.segment(), 4096_MiB);
  }
}

TEST(paddle_row, n09_a_chunk_is_released_whole_and_the_next_one_is_a_first_one) {
  auto pool = preallocating({.initial_gpu_memory = 10_MiB, .reallocate_gpu_memory = 2_MiB});
  void* p = pool.allocate(1_MiB);
  void* const other = pool.allocate(1_MiB);
  pool.deallocate(p);
  EXPECT_EQ(pool.provider().calls().release, 0u);
  pool.trim();  // a block of the chunk is live
  EXPECT_EQ(pool.current_usage().reserved, 10_MiB);
  pool.deallocate(other);
  EXPECT_EQ(pool.provider().calls().release, 0u);
  pool.trim();
  EXPECT_EQ(pool.current_usage().reserved, 0u);
  EXPECT_EQ(pool.provider().calls().release, 1u);
  p = pool.allocate(1);
  EXPECT_EQ(pool.current_usage().reserved, 10_MiB);
  pool.deallocate(p);
}

TEST(paddle_row, n10_a_miss_takes_a_further_chunk_or_the_size_of_a_larger_block) {
  auto pool = preallocating({.initial_gpu_memory = 10_MiB, .reallocate_gpu_memory = 2_MiB});
  std::vector<void*> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(pool.allocate(1_MiB));
  EXPECT_EQ(pool.current_usage().reserved, 10_MiB);
  blocks.push_back(pool.allocate(3_MiB));
  EXPECT_EQ(pool.current_usage().reserved, 13_MiB + 256);
  blocks.push_back(pool.allocate(2_MiB - 8 * 256 - 64));  // the rest of the first chunk
  EXPECT_EQ(pool.current_usage().cached, 0u);
  blocks.push_back(pool.allocate(1_MiB));
  EXPECT_EQ(pool.current_usage().reserved, 15_MiB + 256);
  for (void* p : blocks) pool.deallocate(p);
  EXPECT_EQ(pool.provider().calls().release, 0u);
}

TEST(paddle_row, n11_neighbours_merge_in_either_order_and_a_second_free_is_found) {
  for (const bool low_first : {true, false}) {
    auto pool = preallocating({.initial_gpu_memory = 10_MiB, .reallocate_gpu_memory = 10_MiB});
    void* const below = pool.allocate(1_MiB - 64);
    void* const above = pool.allocate(2_MiB - 64);
    void* const wall = pool.allocate(7_MiB - 64);
    pool.deallocate(low_first ? below : above);
    pool.deallocate(low_first ? above : below);
    EXPECT_FALSE(pool.try_deallocate(above));
    EXPECT_EQ(pool.allocate(3_MiB - 64), below);
    EXPECT_EQ(pool.provider().calls().acquire, 1u);
    pool.deallocate(wall), pool.deallocate(below);
  }
}

TEST(paddle_row, n12_after_a_whole_block_is_freed_nothing_is_used_although_paddle_counts_below_zero) {
  // 64 bytes more than two blocks, so that the second request gets its block whole.
  naive pool(simulated_device({.capacity = 1_GiB, .granularity = 64}),
             paddle_family::naive_best_fit::configured(
                 {.naive_best_fit = true, .initial_gpu_memory = 512 + 64, .reallocate_gpu_memory = 512}));
  void* const first = pool.allocate(100);
  void* const second = pool.allocate(100);
  EXPECT_EQ(pool.current_usage().reserved, 576u);
  EXPECT_EQ(pool.current_usage().allocated, 576u);
  pool.deallocate(first), pool.deallocate(second);
  EXPECT_EQ(pool.current_usage().allocated, 0u);
  EXPECT_EQ(pool.current_usage().cached, 576u);
}

// The limit.

using limited_device = limiting<simulated_device>;
using limited_pool = caching_allocator<paddle_family::auto_growth, limited_device>;

TEST(paddle_row, n13_over_the_limit_is_an_error_though_the_device_has_room) {
  limited_pool pool(limited_device(device_of(16_GiB), 100_MiB));
  void* const live = pool.allocate(60_MiB);
  EXPECT_THROW((void)pool.allocate(50_MiB), out_of_memory);
  EXPECT_EQ(pool.provider().inner().used(), 60_MiB);
  pool.deallocate(live);
}

TEST(paddle_row, n14_the_limit_itself_may_be_reached) {
  limited_pool pool(limited_device(device_of(16_GiB), 100_MiB));
  void* const first = pool.allocate(60_MiB);
  void* const second = pool.allocate(40_MiB);
  EXPECT_EQ(pool.current_usage().reserved, 100_MiB);
  EXPECT_EQ(pool.try_allocate(1), nullptr);
  pool.deallocate(first), pool.deallocate(second);
  // The same with the limit of the recipe.
  auto own = auto_growth({.gpu_memory_limit = 100_MiB});
  void* const all = own.allocate(100_MiB);
  EXPECT_EQ(own.try_allocate(1), nullptr);
  own.deallocate(all);
}

TEST(paddle_row, n15_idle_chunks_count_and_are_released_if_the_limit_refuses) {
  limited_pool pool(limited_device(device_of(16_GiB), 100_MiB));
  void* const first = pool.allocate(30_MiB);
  void* const second = pool.allocate(30_MiB);
  pool.deallocate(first), pool.deallocate(second);
  EXPECT_EQ(pool.current_usage().cached, 60_MiB);
  void* const p = pool.allocate(50_MiB);
  EXPECT_EQ(pool.current_usage().reserved, 50_MiB);
  EXPECT_EQ(pool.provider().taken(), 50_MiB);
  EXPECT_EQ(pool.provider().inner().calls().release, 2u);
  EXPECT_EQ(pool.statistics().num_alloc_retries, 1u);
  pool.deallocate(p);
}

TEST(paddle_row, n16_within_10_mib_5_succeed_and_20_fail) {
  limited_pool pool(limited_device(device_of(16_GiB), 10_MiB));
  void* const p = pool.try_allocate(5_MiB);
  EXPECT_NE(p, nullptr);
  EXPECT_EQ(pool.try_allocate(20_MiB), nullptr);
  pool.deallocate(p);
}

TEST(paddle_row, n17_the_limit_includes_virtual_memory_unlike_paddles) {
  caching_allocator<paddle_family::virtual_memory, limited_device> pool(
      limited_device(device_of(16_GiB), 100_MiB));
  void* const live = pool.allocate(60_MiB);
  EXPECT_EQ(pool.try_allocate(50_MiB), nullptr);
  void* const rest = pool.try_allocate(40_MiB - 512);  // of which 2 MiB are mapped
  EXPECT_NE(rest, nullptr);
  EXPECT_EQ(pool.provider().taken(), 100_MiB);
  EXPECT_EQ(pool.try_allocate(1), nullptr);
  pool.deallocate(live), pool.deallocate(rest);
}

TEST(paddle_row, n18_racing_threads_never_exceed_the_limit_unlike_in_paddle) {
  using shared = limiting<host_pinned>;
  static_assert(detail::is_thread_safe<shared>);
  shared device(
      host_pinned{host_pinned::options{.capacity = 64_MiB, .pin = host_pinned::pinning::where_allowed}},
      10_MiB);
  std::atomic<std::size_t> held{0}, most{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) {
        void* const p = device.acquire(3_MiB);
        if (p == nullptr) continue;
        const std::size_t now = held += 3_MiB;
        for (std::size_t seen = most; now > seen && !most.compare_exchange_weak(seen, now);) {
        }
        held -= 3_MiB;
        EXPECT_TRUE(device.release(p, 3_MiB));
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_LE(most.load(), 9_MiB);
  EXPECT_GT(most.load(), 0u);
  EXPECT_EQ(device.taken(), 0u);
}

// Auto growth.

TEST(paddle_row, n19_without_a_chunk_size_a_request_of_1000_takes_1024) {
  auto pool = auto_growth({});
  void* const p = pool.allocate(1000);
  EXPECT_EQ(pool.current_usage().allocated, 1024u);
  EXPECT_EQ(pool.provider().used(), 1024u);
  pool.deallocate(p);
}

TEST(paddle_row, n20_chunks_of_10_mib_serve_half_a_mib_and_then_10) {
  auto pool = auto_growth({.auto_growth_chunk_size = 10_MiB});
  void* const small = pool.allocate(512_KiB);
  EXPECT_EQ(pool.current_usage().reserved, 10_MiB);
  void* const large = pool.allocate(10_MiB);
  EXPECT_EQ(pool.current_usage().reserved, 20_MiB);
  pool.deallocate(small), pool.deallocate(large);
}

TEST(paddle_row, n21_a_request_of_1_mib_gets_the_high_end_of_a_chunk) {
  simulated_device device({.granularity = 256, .log_calls = 1});
  growing pool(std::move(device), paddle_family::auto_growth::configured({.auto_growth_chunk_size = 10_MiB}));
  void* const p = pool.allocate(1_MiB);
  EXPECT_EQ(number(p), pool.provider().log().back().address + 9_MiB);
  pool.deallocate(p);
}

TEST(paddle_row, n22_a_chunk_that_is_refused_fails_a_request_unless_it_settles_for_less) {
  auto strict = auto_growth({.auto_growth_chunk_size = 10_MiB}, 8_MiB);
  EXPECT_EQ(strict.try_allocate(1_MiB), nullptr);
  growing content(device_of(8_MiB), strict.policies());
  content.policies().recovery.accepts_exact_size = true;
  void* const p = content.try_allocate(1_MiB);
  EXPECT_NE(p, nullptr);
  EXPECT_EQ(content.current_usage().reserved, 1_MiB);
  content.deallocate(p);
}

TEST(paddle_row, n23_idle_chunks_are_released_before_growth_or_when_memory_runs_out) {
  // A chunk is padded by 256 for its alignment.
  using padded = with<paddle_family::auto_growth, round_padded<256, round_to_multiple<256>>>;
  for (const bool before_growth : {false, true}) {
    policies<padded> chosen;
    chosen.eviction.before_growth = before_growth;
    caching_allocator<padded, simulated_device> pool(device_of(11264), chosen);
    std::vector<std::size_t> reserved;
    for (const std::size_t bytes : {4096u, 4608u, 5120u}) {
      pool.deallocate(pool.allocate(bytes));
      reserved.push_back(pool.current_usage().reserved);
    }
    EXPECT_EQ(reserved, (std::vector<std::size_t>{4352, before_growth ? 4864u : 9216u, 5376}));
  }
}

TEST(paddle_row, n24_a_request_of_8192_with_4096_to_align_it_takes_12288_and_no_idle_chunk_stays) {
  using padded = with<paddle_family::auto_growth, round_padded<4096, round_to_multiple<256>>>;
  policies<padded> chosen;
  chosen.eviction.at_free = true;
  caching_allocator<padded, simulated_device> pool(device_of(1_MiB), chosen);
  void* const p = pool.allocate(8192);
  EXPECT_EQ(pool.current_usage().reserved, 12288u);
  pool.deallocate(p);
  EXPECT_EQ(pool.current_usage().reserved, 0u);
}

constexpr paddle_settings two_pools{.auto_growth_chunk_size = 10_MiB,  // two pools override it
                                    .small_pool_size = 1_MiB,
                                    .small_pool_chunk_size = 2_MiB,
                                    .large_pool_chunk_size = 16_MiB};

TEST(paddle_row, n25_small_and_large_pools_grow_by_chunks_of_their_own) {
  auto pool = auto_growth(two_pools);
  // Each pool begins with an idle chunk.
  pool.deallocate(pool.allocate(2_MiB - 1_MiB));
  pool.policies().growth.large = 20_MiB;
  pool.deallocate(pool.allocate(20_MiB));
  pool.policies().growth.large = 16_MiB;
  EXPECT_EQ(pool.current_usage().reserved, 22_MiB);
  std::vector<void*> blocks;
  for (int i = 0; i < 7; ++i) blocks.push_back(pool.allocate(512_KiB));
  EXPECT_EQ(pool.current_usage().allocated, 3_MiB + 512_KiB);
  EXPECT_EQ(pool.current_usage().reserved, 24_MiB);
  for (void* p : blocks) pool.deallocate(p);
}

TEST(paddle_row, n26_a_large_pool_of_6_mib_grows_by_16_for_8) {
  auto pool = auto_growth(two_pools);
  pool.policies().growth.large = 6_MiB;
  pool.deallocate(pool.allocate(6_MiB));
  EXPECT_EQ(pool.current_usage().reserved, 6_MiB);
  pool.policies().growth.large = 16_MiB;
  void* const p = pool.allocate(8_MiB);
  EXPECT_EQ(pool.current_usage().reserved, 22_MiB);
  pool.deallocate(p);
}

TEST(paddle_row, n27_a_sweep_frees_nothing_of_a_chunk_with_a_live_block) {
  auto pool = auto_growth({.auto_growth_chunk_size = 10_MiB, .free_idle_chunk = true});
  void* const lives = pool.allocate(1_MiB);
  pool.deallocate(pool.allocate(9_MiB));
  pool.trim();
  EXPECT_EQ(pool.current_usage().reserved, 10_MiB);
  EXPECT_EQ(pool.provider().calls().release, 0u);
  pool.deallocate(lives);
  EXPECT_EQ(pool.current_usage().reserved, 0u);
}

TEST(paddle_row, n28_a_request_of_0_bytes_returns_null_without_a_call_and_null_may_be_freed) {
  auto pool = auto_growth({.auto_growth_chunk_size = 10_MiB});
  void* const nothing = pool.allocate(0);
  EXPECT_EQ(nothing, nullptr);
  EXPECT_EQ(pool.provider().calls().acquire, 0u);
  pool.deallocate(nothing);
  EXPECT_EQ(pool.current_usage().allocated, 0u);
}

// Front ends and adaptors for Paddle.

TEST(paddle_row, n30_best_fit_in_one_region_cuts_from_the_low_end_and_merges_all) {
  using low_end = with<paddle_family::auto_growth, round_to_multiple<64>, split_if_remainder_at_least<64>>;
  constexpr std::size_t unit = 64;
  policies<low_end> chosen;
  chosen.growth.large = 230 * unit;
  caching_allocator<low_end, simulated_device> pool(simulated_device({.capacity = 1_MiB, .granularity = 64}),
                                                    chosen);
  void* const first = pool.allocate(80 * unit);
  void* const second = pool.allocate(60 * unit);
  void* const third = pool.allocate(90 * unit);
  EXPECT_EQ(number(second) - number(first), 80 * unit);
  EXPECT_EQ(number(third) - number(first), 140 * unit);
  pool.deallocate(second);
  void* const again = pool.allocate(30 * unit);
  EXPECT_EQ(again, second);
  for (void* p : {first, again, third}) pool.deallocate(p);
  EXPECT_EQ(pool.allocate(230 * unit), first);
  EXPECT_EQ(pool.provider().calls().acquire, 1u);
  pool.deallocate(first);
}

using waiting_pool = waiting<locked<caching_allocator<paddle_family::auto_growth, simulated_device>>>;

TEST(paddle_row, n31_four_threads_that_wait_for_the_same_memory_all_get_it) {
  waiting_pool pool(60s, device_of(1_MiB));
  std::array<void*, 4> got{};
  std::vector<std::thread> threads;
  for (void*& p : got) {
    threads.emplace_back([&] {
      p = pool.allocate(1_MiB - 1);
      std::this_thread::sleep_for(40ms);
      pool.deallocate(p);
    });
  }
  for (std::thread& t : threads) t.join();
  for (void* p : got) EXPECT_EQ(p, got[0]);
  EXPECT_NE(got[0], nullptr);
}

TEST(paddle_row, n32_without_a_free_it_fails_at_the_deadline_with_the_first_failure) {
  waiting_pool pool(50ms, device_of(1_MiB));
  void* const held = pool.allocate(1_MiB);
  const auto begin = std::chrono::steady_clock::now();
  try {
    (void)pool.allocate(4096);
    ADD_FAILURE() << "there is no memory";
  } catch (const out_of_memory& told) {
    EXPECT_EQ(told.requested(), 4096u);
  }
  EXPECT_GE(std::chrono::steady_clock::now() - begin, 50ms);
  pool.deallocate(held);
}

TEST(paddle_row, n33_a_recorded_stream_keeps_a_block_pending_and_its_own_stream_does_not) {
  auto pool = auto_growth({.free_idle_chunk = true});
  void* p = pool.allocate(1_MiB, stream_id{1});
  EXPECT_TRUE(pool.record_stream(p, stream_id{1}));
  pool.provider().submit(stream_id{1}, 1'000'000'000);
  pool.deallocate(p);
  EXPECT_EQ(pool.current_usage().reserved, 0u);

  p = pool.allocate(1_MiB, stream_id{1});
  EXPECT_TRUE(pool.record_stream(p, stream_id{2}));
  pool.provider().submit(stream_id{2}, 5'000'000'000);
  pool.deallocate(p);
  EXPECT_EQ(pool.current_usage().pending(), 1_MiB);
  EXPECT_EQ(pool.provider().calls().release, 1u);
  pool.provider().advance(5'000'000'000);
  void* const next = pool.allocate(512_KiB, stream_id{3});
  EXPECT_EQ(pool.current_usage().pending(), 0u);
  EXPECT_EQ(pool.provider().calls().release, 2u);
  pool.deallocate(next);
}

TEST(paddle_row, n34_a_completed_block_of_another_stream_serves_if_memory_ran_out) {
  auto pool = auto_growth({}, 10_MiB);
  void* const other = pool.allocate(8_MiB, stream_id{2});
  EXPECT_TRUE(pool.record_stream(other, stream_id{3}));
  pool.provider().submit(stream_id{3}, 1'000'000);
  pool.deallocate(other);
  EXPECT_EQ(pool.current_usage().pending(), 8_MiB);
  pool.provider().advance(1'000'000);
  void* const p = pool.try_allocate(8_MiB, stream_id{1});
  EXPECT_NE(p, nullptr);
  EXPECT_EQ(pool.current_usage().reserved, 8_MiB);
  EXPECT_EQ(pool.statistics().num_alloc_retries, 1u);
  pool.deallocate(p);
}

TEST(paddle_row, n35_a_block_outlives_its_thread_and_is_released_once) {
  per_stream<caching_allocator<paddle_family::auto_growth, simulated_device>> pool(device_of(1_GiB));
  void* p = nullptr;
  std::thread([&] { p = pool.allocate(1_MiB, stream_id{1}); }).join();
  std::thread([&] {
    EXPECT_TRUE(pool.try_deallocate(p));
    EXPECT_FALSE(pool.try_deallocate(p));
  }).join();
  EXPECT_EQ(pool.current_usage().allocated, 0u);
  EXPECT_EQ(pool.current_usage().cached, 1_MiB);
}

// Growth in place takes only the pages that a block needs. Paddle backs 2 MiB with 4.
TEST(paddle_row, n36_growth_in_place_maps_only_the_missing_bytes_after_a_free_block) {
  caching_allocator<paddle_family::virtual_memory, simulated_device> pool;
  void* const first = pool.allocate(2_MiB);
  EXPECT_EQ(pool.current_usage().reserved, 4_MiB);
  void* const tail = pool.allocate(5_MiB);
  pool.deallocate(tail);
  EXPECT_EQ(pool.current_usage().reserved, 8_MiB);
  void* const large = pool.allocate(8_MiB);
  EXPECT_EQ(large, tail);
  EXPECT_EQ(pool.current_usage().reserved, 12_MiB);
  pool.deallocate(first), pool.deallocate(large);
}

TEST(paddle_row, n37_virtual_memory_keeps_a_rest_of_256_bytes_with_the_block) {
  caching_allocator<paddle_family::virtual_memory, simulated_device> pool;
  void* const hole = pool.allocate(1024);
  void* const held = pool.allocate(256);
  pool.deallocate(hole);
  EXPECT_EQ(pool.allocate(768), hole);
  EXPECT_EQ(pool.current_usage().allocated, 1024u + 256);
  pool.deallocate(hole);
  EXPECT_EQ(pool.allocate(512), hole);
  EXPECT_EQ(pool.current_usage().allocated, 512u + 256);
  pool.deallocate(hole), pool.deallocate(held);
}

TEST(paddle_row, n38_addresses_do_not_run_out_unlike_in_paddle) {
  constexpr std::size_t total = 64_MiB, size = 8_MiB;
  caching_allocator<paddle_family::virtual_memory, simulated_device> pool(
      simulated_device({.capacity = total}));
  for (std::size_t i = 0; i < 10 * (total / size + 1); ++i) {
    void* const p = pool.try_allocate(size);
    ASSERT_NE(p, nullptr) << i;
    pool.deallocate(p);
    pool.trim();
    ASSERT_EQ(pool.current_usage().reserved, 0u);
  }
}

// The deferred_free_queue, and outputs in place of inputs.

template <std::size_t Count>
constexpr std::size_t collected(std::array<std::int64_t, Count> bytes, fraction share) {
  std::array<paddle_passes::variable, Count> all{};
  for (std::size_t i = 0; i < Count; ++i) all[i].bytes = bytes[i];
  paddle_passes::choose_collected(all, share);
  std::size_t mask = 0;
  for (std::size_t i = 0; i < Count; ++i) mask |= std::size_t{all[i].is_collected} << i;
  return mask;
}

TEST(paddle_row, n39_of_50_30_15_and_5_a_share_of_60_percent_takes_the_first_two) {
  EXPECT_EQ(collected<4>({50, 30, 15, 5}, percent(60)), 0b0011u);
}

TEST(paddle_row, n40_of_one_of_100_and_three_of_1_half_takes_the_large_one) {
  EXPECT_EQ(collected<4>({100, 1, 1, 1}, percent(50)), 0b0001u);
}

TEST(paddle_row, n41_a_share_of_less_than_a_byte_or_0_takes_none_and_1_takes_all) {
  EXPECT_EQ(collected<3>({10, 10, 10}, percent(1)), 0u);
  EXPECT_EQ(collected<3>({10, 10, 10}, percent(0)), 0u);
  EXPECT_EQ(collected<3>({10, 10, 10}, percent(100)), 0b111u);
}

TEST(paddle_row, n42_garbage_is_freed_together_at_a_threshold_at_once_or_never) {
  auto pool = auto_growth({});
  const std::size_t most = 6 * 1_GiB / 10, rest = 1_GiB - most;
  {
    deferred_free_queue garbage(pool, {.threshold = 1_GiB});
    garbage.push(pool.allocate(most), most);
    EXPECT_EQ(pool.current_usage().requested, most);
    garbage.push(pool.allocate(rest), rest);
    EXPECT_EQ(pool.current_usage().requested, 0u);
    EXPECT_EQ(garbage.queued_bytes(), 0u);
  }
  deferred_free_queue at_once(pool, {.threshold = paddle_settings{}.garbage_threshold});
  for (int i = 0; i < 3; ++i) {
    at_once.push(pool.allocate(1), 1);
    EXPECT_EQ(pool.current_usage().allocated, 0u);
  }
  deferred_free_queue never(pool, {.threshold = unlimited});
  never.push(pool.allocate(2_GiB), 2_GiB);
  EXPECT_EQ(pool.current_usage().requested, 2_GiB);
}

TEST(paddle_row, n43_an_input_gives_its_memory_to_one_output_that_fits) {
  EXPECT_TRUE(paddle_passes::may_reuse({}, {}));
  EXPECT_FALSE(paddle_passes::may_reuse({.last_readers = 2}, {}));
  EXPECT_FALSE(paddle_passes::may_reuse({.uses = 2}, {}));
  EXPECT_FALSE(paddle_passes::may_reuse({.is_persistable = true}, {}));
  EXPECT_FALSE(paddle_passes::may_reuse({.is_pinned = true}, {}));
  EXPECT_FALSE(paddle_passes::may_reuse({.is_fetched = true}, {}));

  auto pool = auto_growth({});
  void* input = pool.allocate(1_MiB);
  void* const at = input;
  void* first = allocate_in_place(pool, input, 1_MiB);
  void* const second = allocate_in_place(pool, input, 1_MiB);
  EXPECT_EQ(first, at);
  EXPECT_NE(second, at);
  pool.deallocate(second);

  void* b = allocate_in_place(pool, first, 1_MiB);
  void* c = allocate_in_place(pool, b, 1_MiB);
  EXPECT_EQ(c, at);
  EXPECT_EQ(pool.current_usage().allocated, 1_MiB);

  void* larger = allocate_in_place(pool, c, 2_MiB);
  EXPECT_NE(larger, at);
  void* const larger_at = larger;
  void* const smaller = allocate_in_place(pool, larger, 512_KiB);
  EXPECT_NE(smaller, larger_at);
  EXPECT_EQ(pool.current_usage().allocated, 512_KiB);
  pool.deallocate(smaller);
}

}  // namespace
