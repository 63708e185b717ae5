// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/concurrent/locked.hpp>
#include <tessera/concurrent/per_stream.hpp>
#include <tessera/concurrent/waiting.hpp>
#include <tessera/configured.hpp>
#include <tessera/interop/aligned_request.hpp>
#include <tessera/interop/ownership.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/recipe/paddle.hpp>
#include <tessera/tessera.hpp>

#include "host_pools.hpp"

namespace {

using namespace tessera;
using interop::aligned_request;
using shape_tests::is_aligned;
using shape_tests::packed_tightly;
using tight = caching_allocator<packed_tightly, simulated_device>;

/// Makes the next small block begin at an odd multiple of 64 bytes.
void* shift_by_64(tight& pool) {
  void* const first = pool.allocate(64);
  EXPECT_TRUE(is_aligned(first, 128));
  return first;
}

TEST(aligned_request, takes_no_extra_bytes_if_the_block_is_aligned) {
  caching_allocator<pytorch<>, simulated_device> pool;
  const aligned_request request(1000, 256);
  void* const p = request.allocate(pool, {});
  EXPECT_TRUE(is_aligned(p, 256));
  EXPECT_EQ(pool.statistics().all.requested_bytes.current, 1000);
  EXPECT_EQ(pool.statistics().all.allocation.allocated, 1);
  request.deallocate(pool, p);
  EXPECT_EQ(pool.current_usage().allocated, 0u);
}

TEST(aligned_request, takes_a_larger_block_otherwise) {
  tight pool;
  void* const first = shift_by_64(pool);
  const aligned_request request(100, 256);
  void* const p = request.allocate(pool, {});
  EXPECT_TRUE(is_aligned(p, 256));
  EXPECT_EQ(pool.statistics().all.requested_bytes.current, 64 + 100 + 256 - 64);
  void* const behind = pool.allocate(64);
  EXPECT_GE(static_cast<std::byte*>(behind) - static_cast<std::byte*>(p), 100);
  request.deallocate(pool, p);
  pool.deallocate(first);
  pool.deallocate(behind);
  EXPECT_EQ(pool.current_usage().allocated, 0u);
  EXPECT_STREQ(pool.audit(), nullptr);
}

TEST(aligned_request, of_no_bytes_has_an_address_of_its_own) {
  tight pool;
  const aligned_request nothing(0, 1);
  void* const a = nothing.allocate(pool, {});
  void* const b = nothing.allocate(pool, {});
  EXPECT_NE(a, nullptr);
  EXPECT_NE(a, b);
  nothing.deallocate(pool, a);
  nothing.deallocate(pool, b);
  nothing.deallocate(pool, nullptr);
  aligned_request(0, 4096).deallocate(pool, nullptr);
  EXPECT_EQ(pool.current_usage().allocated, 0u);
}

TEST(aligned_request, that_fails_throws_the_exception_of_allocate) {
  tight pool{simulated_device{simulated_device::options{.capacity = 64_MiB}}};
  EXPECT_THROW((void)aligned_request(1, 128_MiB).allocate(pool, {}), out_of_memory);
  EXPECT_THROW((void)aligned_request(unlimited, 4096).allocate(pool, {}), out_of_memory);
  EXPECT_THROW((void)aligned_request(max_request, 128).allocate(pool, {}), out_of_memory);
  EXPECT_EQ(pool.current_usage().allocated, 0u);
}

struct served {
  aligned_request request;
  void* at;
};
/// All alignments and sizes, with live neighbours, over an allocator with the calls of `pool`.
template <typename Pool>
void serve_at_random(Pool& pool, std::size_t most_alignment) {
  std::mt19937_64 random(7);
  std::vector<served> live;
  for (int i = 0; i < 4000; ++i) {
    if (live.size() < 40 && random() % 2 == 0) {
      std::size_t alignment = std::size_t{1} << random() % 17;
      if (alignment > most_alignment) alignment = most_alignment;
      const aligned_request request(random() % 3000, alignment);
      void* const p = request.allocate(pool, stream_id{random() % 3});
      ASSERT_TRUE(is_aligned(p, alignment)) << alignment;
      for (const served& other : live) {
        const auto a = reinterpret_cast<std::uintptr_t>(p), b = reinterpret_cast<std::uintptr_t>(other.at);
        ASSERT_TRUE(a + request.bytes <= b || b + other.request.bytes <= a);
      }
      live.push_back({request, p});
    } else if (!live.empty()) {
      std::swap(live[random() % live.size()], live.back());
      live.back().request.deallocate(pool, live.back().at);
      live.pop_back();
    }
  }
  for (const served& s : live) s.request.deallocate(pool, s.at);
  EXPECT_STREQ(pool.audit(), nullptr);
  EXPECT_EQ(pool.current_usage().allocated, 0u);
}

TEST(aligned_request, is_served_by_every_adaptor) {
  tight plain;
  serve_at_random(plain, 64_KiB);
  caching_allocator<passthrough, simulated_device> passing;
  serve_at_random(passing, 64_KiB);
  caching_allocator<pytorch_family::expandable, simulated_device> ranges;
  serve_at_random(ranges, 64_KiB);
  locked<caching_allocator<packed_tightly, simulated_device>> safe;
  serve_at_random(safe, 64_KiB);
  per_stream<caching_allocator<with<packed_tightly, reuse_on_same_stream>, simulated_device>> arenas;
  serve_at_random(arenas, 16_KiB);
  waiting<locked<caching_allocator<packed_tightly, simulated_device>>> patient;
  serve_at_random(patient, 4_KiB);
  configured<pytorch_family, locked<caching_allocator<pytorch<>, simulated_device>>> chosen(
      config::pytorch::settings{});
  serve_at_random(chosen, 4_KiB);
  auto shared = shared_allocator<locked<caching_allocator<packed_tightly, simulated_device>>>::make();
  serve_at_random(shared, 4_KiB);
}

TEST(aligned_request, is_found_by_its_address) {
  tight pool;
  void* const first = shift_by_64(pool);
  const aligned_request request(100, 1024);
  void* const p = request.allocate(pool, {});
  EXPECT_EQ(request.find(pool, p).bytes, 100u + 1024 - 64);
  EXPECT_EQ(aligned_request(101, 1024).find(pool, p).address, nullptr);
  EXPECT_EQ(aligned_request(100, 2048).find(pool, p).address, nullptr);
  EXPECT_EQ(request.find(pool, first).address, is_aligned(first, 1024) ? nullptr : first);
  for (const int beside : {-1024, -64, 64, 1024})
    EXPECT_EQ(request.find(pool, static_cast<std::byte*>(p) + beside).address, nullptr) << beside;
  request.deallocate(pool, p);
  EXPECT_EQ(request.find(pool, p).address, nullptr);
  pool.deallocate(first);
}

TEST(aligned_request, is_reused_in_order_of_the_stream_that_freed_it) {
  for (const std::size_t alignment : {std::size_t{8}, std::size_t{256}, std::size_t{4_KiB}}) {
    caching_allocator<pytorch<>, simulated_device> pool;
    const aligned_request request(1000, alignment);
    const auto never = [](stream_id) { return false; };
    void* const p = request.allocate(pool, stream_id{1});
    pool.provider().submit(stream_id{2}, 1000);
    request.deallocate_recording(pool, p, stream_id{2}, never);
    EXPECT_GT(pool.current_usage().pending(), 0u) << alignment;
    pool.provider().advance(2000);
    pool.trim();
    EXPECT_EQ(pool.current_usage().reserved, 0u);
    request.deallocate_recording(pool, nullptr, stream_id{2}, never);

    void* const same = request.allocate(pool, stream_id{1});
    request.deallocate_recording(pool, same, stream_id{1}, never);
    EXPECT_EQ(pool.current_usage().pending(), 0u);
  }
}

/// An allocator without host memory for streams.
struct forgetful : tight {
  bool record_stream(void*, stream_id) noexcept { return false; }
  bool try_record_stream(void*, stream_id) noexcept { return false; }
};
TEST(aligned_request, stays_live_if_no_stream_can_be_recorded_or_waited_for) {
  forgetful pool;
  for (const std::size_t alignment : {std::size_t{64}, std::size_t{128}, std::size_t{1024}}) {
    const aligned_request request(100, alignment);
    void* const p = request.allocate(pool, {});
    const std::size_t live = pool.current_usage().allocated;
    request.deallocate_recording(pool, p, stream_id{2}, [](stream_id) { return false; });
    EXPECT_EQ(pool.current_usage().allocated, live);
    stream_id waited_for;
    request.deallocate_recording(pool, p, stream_id{2}, [&](stream_id s) { return waited_for = s, true; });
    EXPECT_EQ(waited_for, stream_id{2});
    EXPECT_EQ(pool.current_usage().allocated, 0u);
  }
}

TEST(aligned_request, finds_the_block_of_a_large_alignment) {
  caching_allocator<pytorch<>, simulated_device> pool;
  void* const other = pool.allocate(3000);
  const aligned_request request(5_MiB, std::size_t{1} << 30);
  void* const p = request.allocate(pool, {});
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(p) % (std::size_t{1} << 30), 0u);
  EXPECT_TRUE(request.record_stream(pool, p, stream_id{2}));
  EXPECT_EQ(request.find(pool, other).address, nullptr);
  EXPECT_EQ(aligned_request(6_MiB, std::size_t{1} << 30).find(pool, p).address, nullptr);
  request.deallocate(pool, p);
  EXPECT_EQ(request.find(pool, p).address, nullptr);
  pool.deallocate(other);
  EXPECT_EQ(pool.current_usage().allocated, 0u);
}

template <typename Recipe>
void expect_blocks_at_multiples_of_4096() {
  caching_allocator<Recipe, simulated_device> pool(
      simulated_device({.capacity = 200_MiB, .granularity = 4096}));
  std::mt19937 random(3);
  std::vector<void*> live;
  for (int step = 0; step < 4000; ++step) {
    if (!live.empty() && random() % 2 == 0) {
      std::swap(live[random() % live.size()], live.back());
      pool.deallocate(live.back());
      live.pop_back();
    } else if (void* const p = pool.try_allocate(1 + random() % (random() % 4 == 0 ? 8_MiB : 30000))) {
      EXPECT_TRUE(is_aligned(p, 4096));
      live.push_back(p);
    }
  }
  for (void* const p : live) pool.deallocate(p);
  EXPECT_STREQ(pool.audit(), nullptr);
}
TEST(alignment_of_all_blocks, follows_from_the_rounding) {
  using aligned =
      tessera::recipe::with<tessera::recipe::pytorch<>, tessera::policy::round_to_divisions<4096>>;
  expect_blocks_at_multiples_of_4096<aligned>();
  expect_blocks_at_multiples_of_4096<with<pytorch_family::expandable, round_to_divisions<4096>>>();
  expect_blocks_at_multiples_of_4096<with<stitched, round_to_multiple<4096>>>();
  expect_blocks_at_multiples_of_4096<with<paddle<>, round_to_multiple<4096>>>();
}

TEST(aligned_request_death, names_the_rule_that_is_broken) {
  tight pool;
  void* const first = pool.allocate(64);
  const aligned_request request(100, 1024);
  void* const p = request.allocate(pool, {});
  EXPECT_DEATH(aligned_request(1, 48), "an alignment is a power of two");
  EXPECT_DEATH(aligned_request(1, 0), "an alignment is a power of two");
  EXPECT_DEATH(aligned_request(99, 1024).deallocate(pool, p), "live block of this size and alignment");
  EXPECT_DEATH((request.deallocate(pool, p), request.deallocate(pool, p)),
               "live block of this size and alignment");
  EXPECT_DEATH(aligned_request(100, std::size_t{1} << 50).deallocate(pool, p),
               "live block of this size and alignment");
  EXPECT_DEATH(aligned_request(99, 8).deallocate(pool, first),
               "not the requested size: 99 bytes were passed, 64");
  request.deallocate(pool, p);
  pool.deallocate(first);
}

}  // namespace
