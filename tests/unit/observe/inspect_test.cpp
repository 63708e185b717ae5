// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/allocator_adaptor.hpp>
#include <tessera/concurrent/locked.hpp>
#include <tessera/concurrent/per_device.hpp>
#include <tessera/concurrent/per_stream.hpp>
#include <tessera/interop/aligned_request.hpp>
#include <tessera/interop/ownership.hpp>
#include <tessera/observe/inspect.hpp>
#include <tessera/provider/adaptor.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/recipe/stitched.hpp>
#include <tessera/tessera.hpp>

namespace {

using namespace tessera;
using state = block_view::state;

struct seen {
  segment_view segment;
  std::vector<block_view> blocks;
};
template <typename Pool>
std::map<std::uintptr_t, seen> look_at(Pool& pool) {
  std::map<std::uintptr_t, seen> found;
  for_each_block(pool, [&](const segment_view& s, const block_view& b) {
    found[s.address].segment = s;
    found[s.address].blocks.push_back(b);
  });
  return found;
}

TEST(inspect, an_empty_allocator_holds_nothing) {
  caching_allocator<pytorch_family::native, simulated_device> pool;
  EXPECT_TRUE(look_at(pool).empty());
  EXPECT_EQ(tessera::detail::non_releasable_bytes(pool), 0u);
}

TEST(inspect, finds_a_live_block_by_its_address_alone) {
  caching_allocator<pytorch_family::native, simulated_device> pool;
  auto* const p = static_cast<std::byte*>(pool.allocate(1000, stream_id{3}));
  const block_view found = live_block_at(pool, p);
  EXPECT_EQ(found.address, reinterpret_cast<std::uintptr_t>(p));
  EXPECT_EQ(found.bytes, 1024u);
  EXPECT_EQ(found.requested, 1000u);
  EXPECT_EQ(found.is, state::live);
  EXPECT_EQ(found.stream, stream_id{3});
  EXPECT_EQ(live_block_at(pool, p + 512).bytes, 0u);
  EXPECT_EQ(live_block_at(pool, nullptr).bytes, 0u);
  pool.deallocate(p);
  EXPECT_EQ(live_block_at(pool, p).bytes, 0u);
}

TEST(inspect, finds_the_segment_of_an_aligned_request) {
  caching_allocator<pytorch_family::native, simulated_device> pool;
  (void)pool.allocate(600);
  const aligned_request request(1000, 4096);
  void* const p = request.allocate(pool, {});
  EXPECT_EQ(segment_of(pool, p).bytes, 0u) << "the address lies inside the block";
  const segment_view segment = segment_of(pool, request.find(pool, p).address);
  EXPECT_EQ(segment.bytes, 2_MiB);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(p) - segment.address, 4096u);
}

/// Expects segment_of and live_block_at to agree with a walk over all blocks.
template <typename Pool, typename Blocks>
void expect_segments(Pool& pool, Blocks& all_blocks) {
  std::vector<void*> live;
  for (std::size_t i = 0; i < 300; ++i) {
    live.push_back(pool.allocate(1 + i * 7919 % 3'000'000, stream_id{i % 3}));
    if (i % 3 == 2) pool.deallocate(std::exchange(live[i / 2], nullptr));
  }
  std::size_t found = 0, shared = 0;
  all_blocks([&](auto& inner) {
    for_each_block(inner, [&](const segment_view& segment, const block_view& block) {
      if (block.is != state::live) return;
      void* const p = reinterpret_cast<void*>(block.address);
      const block_view same_block = live_block_at(pool, p);
      const segment_view same = segment_of(pool, p);
      ++found;
      shared += block.address > segment.address;
      EXPECT_EQ(same_block.address, block.address);
      EXPECT_EQ(same_block.requested, block.requested);
      EXPECT_EQ(same.address, segment.address);
      EXPECT_EQ(same.bytes, segment.bytes);
      EXPECT_EQ(same.stream, segment.stream);
      EXPECT_EQ(same.in_range, segment.in_range);
    });
  });
  EXPECT_EQ(found, 200u);
  EXPECT_GT(shared, 20u);
  for (void* p : live) pool.deallocate(p);
}
template <typename Recipe>
void expect_segments_under() {
  caching_allocator<Recipe, simulated_device> pool;
  const auto blocks = [&pool](auto f) { f(pool); };
  expect_segments(pool, blocks);
  int elsewhere = 0;
  EXPECT_EQ(segment_of(pool, &elsewhere).bytes, 0u);
  EXPECT_EQ(segment_of(pool, nullptr).bytes, 0u);
}
TEST(inspect, finds_the_segment_of_a_block) {
  expect_segments_under<pytorch_family::native>();
  expect_segments_under<pytorch_family::expandable>();
  expect_segments_under<stitched>();
  expect_segments_under<cuda_async>();
}
template <typename Pool>
void expect_segments_in(Pool& pool) {
  const auto blocks = [&pool](auto f) { pool.for_each_allocator(f); };
  // The walk holds the mutex, so segment_of is called after it.
  std::map<std::uintptr_t, std::uintptr_t> segments;
  std::vector<void*> live;
  for (std::size_t i = 0; i < 60; ++i) live.push_back(pool.allocate(1 + i * 7919, stream_id{i % 3}));
  blocks([&](auto& one) {
    for_each_block(one, [&](const segment_view& s, const block_view& b) { segments[b.address] = s.address; });
  });
  for (void* p : live) {
    const auto address = reinterpret_cast<std::uintptr_t>(p);
    EXPECT_EQ(segment_of(pool, p).address, segments.at(address));
    EXPECT_EQ(live_block_at(pool, p).address, address);
    pool.deallocate(p);
    EXPECT_EQ(segment_of(pool, p).bytes, 0u);
    EXPECT_EQ(live_block_at(pool, p).bytes, 0u);
  }
}
TEST(inspect, finds_blocks_through_every_front_end) {
  locked<caching_allocator<pytorch<>, simulated_device>> shared;
  expect_segments_in(shared);
  per_stream<caching_allocator<pytorch<>, simulated_device>> arenas;
  expect_segments_in(arenas);
  auto owner =
      shared_allocator<per_stream<caching_allocator<pytorch_family::expandable, simulated_device>>>::make();
  expect_segments_in(owner);
  std::vector<simulated_device> two;
  for (unsigned d = 0; d < 2; ++d) two.emplace_back(simulated_device::options{.device = d});
  per_device<locked<caching_allocator<pytorch<>, simulated_device>>> all(std::move(two));
  (void)all.allocate(1000, 1);
  void* const p = all.allocate(1000, 1);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(p) - segment_of(all, p).address, 1024u);
  EXPECT_EQ(segment_of(all, &all).bytes, 0u);
}

TEST(inspect, shows_each_block_of_a_segment_in_order) {
  caching_allocator<pytorch_family::native, simulated_device> pool;
  void* const a = pool.allocate(1000, stream_id{3});
  void* const b = pool.allocate(600, stream_id{3});
  (void)pool.record_stream(b, stream_id{4});
  pool.provider().hold_events(true);
  pool.deallocate(b);
  const auto found = look_at(pool);
  ASSERT_EQ(found.size(), 1u);
  const seen& only = found.begin()->second;
  EXPECT_EQ(only.segment.bytes, 2_MiB);
  EXPECT_EQ(only.segment.stream, stream_id{3});
  EXPECT_EQ(only.segment.pool, 0u);
  EXPECT_FALSE(only.segment.in_range);
  ASSERT_EQ(only.blocks.size(), 3u);
  EXPECT_EQ(only.blocks[0].address, reinterpret_cast<std::uintptr_t>(a));
  EXPECT_EQ(only.blocks[0].is, state::live);
  EXPECT_EQ(only.blocks[0].bytes, 1024u);
  EXPECT_EQ(only.blocks[0].requested, 1000u);
  EXPECT_EQ(only.blocks[1].is, state::pending);
  EXPECT_EQ(only.blocks[1].requested, 600u);
  EXPECT_EQ(only.blocks[2].is, state::free);
  EXPECT_EQ(only.blocks[2].requested, 0u);
  EXPECT_EQ(only.blocks[2].bytes, 2_MiB - 2048);
  EXPECT_EQ(tessera::detail::non_releasable_bytes(pool), 2_MiB - 2048);
}

TEST(inspect, shows_adjacent_mapped_pages_as_one_segment) {
  caching_allocator<pytorch_family::expandable, simulated_device> pool;
  void* const low = pool.allocate(20_MiB);
  void* const middle = pool.allocate(20_MiB);
  void* const high = pool.allocate(20_MiB);
  pool.deallocate(middle);
  EXPECT_EQ(look_at(pool).size(), 1u);
  EXPECT_EQ(tessera::detail::non_releasable_bytes(pool), 0u) << "a whole page lies free";
  pool.trim();
  const auto found = look_at(pool);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found.begin()->first, reinterpret_cast<std::uintptr_t>(low));
  EXPECT_EQ(found.rbegin()->first, reinterpret_cast<std::uintptr_t>(high));
  for (const auto& [address, part] : found) {
    EXPECT_TRUE(part.segment.in_range);
    EXPECT_EQ(part.segment.bytes, 20_MiB);
    ASSERT_EQ(part.blocks.size(), 1u);
    EXPECT_EQ(part.blocks[0].is, state::live);
  }
  pool.deallocate(high);
  void* const small = pool.allocate(12_MiB);
  EXPECT_EQ(tessera::detail::non_releasable_bytes(pool), 8_MiB) << "the rest of its page";
  pool.deallocate(small);
}

/// A device that inspects the allocator while it releases a segment.
class looking_device : public provider_adaptor<simulated_device> {
 public:
  using provider_adaptor::provider_adaptor;
  bool release(void* p, std::size_t bytes) noexcept {
    look();
    return works && inner().release(p, bytes);
  }
  std::function<void()> look;
  bool works = true;
};

TEST(inspect, shows_segments_that_are_being_released) {
  simulated_device memory;
  caching_allocator<pytorch_family::native, looking_device> pool{looking_device(memory)};
  pool.deallocate(pool.allocate(30_MiB));
  pool.deallocate(pool.allocate(1));
  std::vector<std::size_t> seen;
  pool.provider().look = [&] {
    std::size_t reserved = 0;
    for (const auto& [address, part] : look_at(pool)) {
      EXPECT_EQ(part.blocks.size(), 1u);
      EXPECT_EQ(part.blocks[0].is, state::free);
      reserved += part.segment.bytes;
    }
    EXPECT_EQ(reserved, pool.current_usage().reserved);
    seen.push_back(reserved);
  };
  pool.provider().works = false;
  pool.trim();
  ASSERT_FALSE(seen.empty());
  for (const std::size_t reserved : seen) EXPECT_EQ(reserved, 32_MiB);
  EXPECT_EQ(look_at(pool).size(), 2u) << "they stay where the device fails";
  seen.clear();
  pool.provider().works = true;
  pool.trim();
  ASSERT_EQ(seen.size(), 2u);
  EXPECT_EQ(seen[0], 32_MiB);
  EXPECT_TRUE(look_at(pool).empty());
}

/// Free memory that is releasable is what trim releases.
template <typename Recipe>
void non_releasable_is_what_trim_keeps() {
  caching_allocator<Recipe, simulated_device> pool;
  std::vector<void*> live;
  std::uint64_t dice = 1;
  for (int i = 0; i < 3000; ++i) {
    dice = dice * 6364136223846793005u + 1442695040888963407u;
    if (live.size() > 60 || (dice >> 40 & 3) == 0) {
      if (live.empty()) continue;
      std::swap(live[(dice >> 20) % live.size()], live.back());
      pool.deallocate(live.back());
      live.pop_back();
    } else {
      const std::size_t bytes = std::size_t{1} << (dice >> 58 & 15) << 8;
      live.push_back(pool.allocate(bytes + (dice >> 33 & 255), stream_id{dice >> 50 & 1}));
    }
    std::size_t reserved = 0;
    for (const auto& [address, part] : look_at(pool)) {
      std::uintptr_t at = address;
      for (const block_view& b : part.blocks) {
        ASSERT_EQ(b.address, at);
        at += b.bytes;
      }
      ASSERT_EQ(at - address, part.segment.bytes);
      reserved += part.segment.bytes;
    }
    ASSERT_EQ(reserved, pool.current_usage().reserved);
    if (i % 300 == 299) {
      const std::size_t pinned = tessera::detail::non_releasable_bytes(pool);
      ASSERT_LE(pinned, pool.current_usage().cached);
      pool.trim();
      ASSERT_EQ(pool.current_usage().cached, pinned);
      ASSERT_EQ(tessera::detail::non_releasable_bytes(pool), pinned);
    }
  }
  EXPECT_GT(tessera::detail::non_releasable_bytes(pool), 0u) << "nothing was tested";
}
TEST(inspect, non_releasable_is_what_trim_keeps) {
  non_releasable_is_what_trim_keeps<pytorch_family::native>();
  non_releasable_is_what_trim_keeps<pytorch_family::expandable>();
  non_releasable_is_what_trim_keeps<stitched>();
  non_releasable_is_what_trim_keeps<cuda_async>();
}

}  // namespace
