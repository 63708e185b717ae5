// SPDX-License-Identifier: Apache-2.0
// The functions that all allocators share.
#include <cstddef>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/concurrent/background_reclaiming.hpp>
#include <tessera/concurrent/configured_pinned.hpp>
#include <tessera/concurrent/locked.hpp>
#include <tessera/concurrent/per_device.hpp>
#include <tessera/concurrent/per_stream.hpp>
#include <tessera/concurrent/waiting.hpp>
#include <tessera/configured.hpp>
#include <tessera/debug/guarded.hpp>
#include <tessera/debug/leak_checked.hpp>
#include <tessera/debug/tagged.hpp>
#include <tessera/debug/thread_checked.hpp>
#include <tessera/interop/aligned_request.hpp>
#include <tessera/interop/allocator_handle.hpp>
#include <tessera/interop/cccl.hpp>
#include <tessera/interop/cuda_mempool.hpp>
#include <tessera/interop/ownership.hpp>
#include <tessera/observe/inspect.hpp>
#include <tessera/provider/host_pinned.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>
#include <tessera/trace/captured.hpp>

#include "../by_day.hpp"
#include "interop/host_pools.hpp"
#include "patterns.hpp"

namespace {

using namespace tessera;
using shape_tests::host_memory;
using shape_tests::is_aligned;
using shape_tests::packed_tightly;

struct no_errors {
  void operator()(const std::exception&) const {}
};
using tight = caching_allocator<packed_tightly, simulated_device>;
using tight_locked = locked<caching_allocator<packed_tightly, simulated_device>>;

template <typename Pool>
struct alignments_of : ::testing::Test {
  std::unique_ptr<Pool> owned = [] {
    if constexpr (std::is_constructible_v<Pool, host_pinned>) {
      return std::make_unique<Pool>(host_memory());
    } else if constexpr (std::is_constructible_v<Pool, config::pytorch::settings, host_pinned>) {
      return std::make_unique<Pool>(config::pytorch::settings{}, host_memory());
    } else if constexpr (std::is_constructible_v<Pool, config::pytorch::settings>) {
      return std::make_unique<Pool>(config::pytorch::settings{});
    } else if constexpr (std::is_default_constructible_v<Pool> && !detail::allocator_handle<Pool>) {
      return std::make_unique<Pool>();
    } else {
      return std::make_unique<Pool>(shared_allocator<tight_locked>::make());
    }
  }();
};
using pools = types_by_day<
    6, tight, caching_allocator<pytorch<>, simulated_device>, caching_allocator<stitched, simulated_device>,
    tight_locked, tagged<tight>, guarded<caching_allocator<pinned_packed, host_pinned>>,
    caching_allocator<pytorch_family::expandable, simulated_device>,
    caching_allocator<cuda_async, simulated_device>,
    per_stream<caching_allocator<packed_tightly, simulated_device>>, waiting<tight_locked>,
    background_reclaiming<caching_allocator<packed_tightly, simulated_device>>, thread_checked<tight>,
    leak_checked<tight>, tagged<tight_locked>, trace::captured<tight>, trace::captured<tight_locked>,
    configured<pytorch_family, caching_allocator<pytorch<>, simulated_device>>,
    configured_pinned<pytorch_family::pinned_family, host_pinned>, rethrowing<tight_locked, no_errors>,
    shared_allocator<tight_locked>>;
TYPED_TEST_SUITE(alignments_of, pools);

TYPED_TEST(alignments_of, serve_any_alignment) {
  TypeParam& pool = *this->owned;
  struct block {
    void* p;
    std::size_t bytes;
    std::size_t alignment;
  };
  std::vector<block> live;
  for (std::size_t alignment = 1; alignment <= 64_KiB; alignment *= 2) {
    for (const std::size_t bytes : {std::size_t{1}, std::size_t{100}, std::size_t{5000}}) {
      const aligned_request request(bytes, alignment);
      live.push_back({request.allocate(pool, {}), bytes, alignment});
      ASSERT_TRUE(is_aligned(live.back().p, alignment)) << alignment;
      live.push_back({request.try_allocate(pool, {}), bytes, alignment});
      ASSERT_NE(live.back().p, nullptr);
      ASSERT_TRUE(is_aligned(live.back().p, alignment)) << alignment;
      EXPECT_TRUE(request.record_stream(pool, live.back().p, stream_id{}));
    }
  }
  for (const block& b : live) aligned_request(b.bytes, b.alignment).deallocate(pool, b.p);
  EXPECT_EQ(pool.current_usage().allocated, 0u);
  EXPECT_EQ(aligned_request(max_request, 4096).try_allocate(pool, {}), nullptr);
  EXPECT_THROW((void)aligned_request(max_request, 4096).allocate(pool, {}), out_of_memory);
  aligned_request(0, 4096).deallocate(pool, nullptr);
  EXPECT_STREQ(pool.audit(), nullptr);
}

// A number is never an alignment, a stream or a device.
template <typename Pool>
concept aligns_by_a_number = requires(Pool& pool) { pool.allocate(1000, std::size_t{4096}); };
static_assert(!aligns_by_a_number<tight> && !aligns_by_a_number<tight_locked>);

TEST(allocator_adaptor, hold_back_for_the_streams_that_are_recorded) {
  caching_allocator<with<packed_tightly, reuse_on_same_stream>, simulated_device> pool;
  pool.provider().hold_events(true);
  void* const shift = pool.allocate(64);
  void* const p = aligned_request(1000, 4096).allocate(pool, stream_id{1});
  EXPECT_TRUE(aligned_request(1000, 4096).record_stream(pool, p, stream_id{2}));
  aligned_request(1000, 4096).deallocate(pool, p);
  EXPECT_GE(pool.current_usage().pending(), 1000u);
  pool.provider().hold_events(false);
  pool.deallocate(shift);
  pool.trim();
  EXPECT_EQ(pool.current_usage().reserved, 0u);
}

TEST(allocator_adaptor, serve_each_of_several_devices) {
  std::vector<simulated_device> two;
  for (unsigned d = 0; d < 2; ++d) two.emplace_back(simulated_device::options{.device = d});
  per_device<per_stream<caching_allocator<packed_tightly, simulated_device>>> all(std::move(two));
  (void)all.allocate(64, 1);
  void* const p = aligned_request(1000, 4096).allocate(all.front(1), stream_id{3});
  EXPECT_EQ(all.device_of(p), 1u);
  EXPECT_TRUE(is_aligned(p, 4096));
  EXPECT_TRUE(aligned_request(1000, 4096).record_stream(all, p, stream_id{4}));
  aligned_request(1000, 4096).deallocate(all, p);
  aligned_request(1000, 4096).deallocate(all, nullptr);
  EXPECT_STREQ(all.audit(), nullptr);
  EXPECT_DEATH(aligned_request(1000, 4096).deallocate(all, &all), "it lies in no segment of this allocator");
}

TEST(aligned_death, name_the_rule_that_is_broken) {
  tight pool;
  (void)pool.allocate(64);
  void* const p = aligned_request(1000, 4096).allocate(pool, stream_id{});
  EXPECT_DEATH((void)aligned_request(1000, 3).allocate(pool, stream_id{}), "an alignment is a power of two");
  EXPECT_DEATH(aligned_request(999, 4096).deallocate(pool, p),
               "deallocate: not the address of a live block of this size and alignment; it lies " A_NUMBER
               " bytes "
               "into a live");
  EXPECT_DEATH(pool.deallocate(p),
               "deallocate: not the address of a live block; it lies " A_NUMBER " bytes into a live");
  EXPECT_DEATH((void)aligned_request(999, 4096).record_stream(pool, p, stream_id{}),
               "record_stream: not the address of a live block of this size and alignment");
  per_stream<caching_allocator<packed_tightly, simulated_device>> arenas;
  EXPECT_DEATH(aligned_request(1000, 4096).deallocate(arenas, p), "it lies in no segment of this allocator");
}

/// Live bytes of each device, from a walk over all blocks, with an entry for each allocator.
template <typename Pool>
std::vector<std::size_t> live_of(Pool& pool) {
  std::vector<std::size_t> live;
  pool.for_each_device([&](auto& front, std::size_t device) {
    live.resize(live.size() < device + 1 ? device + 1 : live.size());
    front.for_each_allocator([&](auto& one) {
      for_each_block(one, [&](const segment_view&, const block_view& b) {
        if (b.is == block_view::state::live) live[device] += b.requested;
      });
    });
  });
  return live;
}
using one_device = std::vector<std::size_t>;

TEST(allocator_adaptor, reaches_the_allocators_inside) {
  caching_allocator<pytorch_family::native, simulated_device> plain;
  (void)plain.allocate(100);
  EXPECT_EQ(live_of(plain), one_device{100});

  locked<caching_allocator<pytorch_family::expandable, simulated_device>> one;
  (void)one.allocate(200);
  EXPECT_EQ(live_of(one), one_device{200});

  per_stream<caching_allocator<pytorch_family::native, simulated_device>> arenas;
  (void)arenas.allocate(1, stream_id{1});
  (void)arenas.allocate(2, stream_id{2});
  EXPECT_EQ(live_of(arenas), one_device{3});

  configured<torch_npu_family, per_stream<caching_allocator<pytorch<>, simulated_device>>> npu(
      torch_npu_family::settings{});
  (void)npu.allocate(5, stream_id{1});
  (void)npu.allocate(6, stream_id{2});
  EXPECT_EQ(live_of(npu), one_device{11});

  per_device<per_stream<caching_allocator<pytorch_family::native, simulated_device>>> two(
      std::vector<simulated_device>(2));
  (void)two.allocate(7, 0);
  (void)two.allocate(8, 1);
  EXPECT_EQ(live_of(two), (std::vector<std::size_t>{7, 8}));

  waiting<locked<caching_allocator<pytorch_family::native, simulated_device>>> patient;
  (void)patient.allocate(9);
  EXPECT_EQ(live_of(patient), one_device{9});

  cuda_mempool<caching_allocator<cuda_async, simulated_device>> driver;
  (void)driver.allocate_async(10, stream_id{1});
  EXPECT_EQ(live_of(driver.pool()), one_device{10});

  configured_pinned<pytorch_family::pinned_family, simulated_device> host({}, simulated_device{});
  (void)host.allocate(11);
  EXPECT_EQ(live_of(host), one_device{11});
}

}  // namespace
