// SPDX-License-Identifier: Apache-2.0
// Paddle's allocators with virtual memory: each rule of their sources, and a model of each that decides the same in random
// programs. The names of files are those of paddle/phi/core/memory/allocation.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <map>
#include <optional>
#include <random>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/configured.hpp>
#include <tessera/extension/registrations.hpp>
#include <tessera/law/recipe_laws.hpp>
#include <tessera/observe/list_chunks.hpp>
#include <tessera/policy/grow_at_end.hpp>
#include <tessera/provider/shared_chunks.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/recipe/paddle.hpp>
#include <tessera/tessera.hpp>

#include "../by_day.hpp"

namespace {

using namespace tessera;
using paddle_settings = config::paddle::settings;
using first_version = paddle_family::virtual_memory;
using second_version = paddle_family::virtual_memory_v2;

paddle_settings v1(std::size_t small = 1_MiB) {
  return {.virtual_memory = true, .vmm_small_pool_size = small};
}
paddle_settings v2(std::size_t small = 1_MiB, std::size_t handle = 16_MiB, bool remaps = true) {
  return {.virtual_memory_v2 = true,
          .vmm_v2_remap_on_oom = remaps,
          .vmm_small_pool_size = small,
          .vmm_v2_handle_size = handle};
}
template <typename Recipe>
caching_allocator<Recipe, simulated_device> make(const paddle_settings& settings,
                                                 std::size_t capacity = 16_GiB) {
  return caching_allocator<Recipe, simulated_device>(
      simulated_device(simulated_device::options{.capacity = capacity}), Recipe::configured(settings));
}
std::uintptr_t number(const void* p) { return reinterpret_cast<std::uintptr_t>(p); }

static_assert(law::recipe<first_version>() && law::recipe<second_version>());
static_assert(law::recipe<first_version>(first_version::configured({.virtual_memory = true,
                                                                    .vmm_small_pool_size = 0})));
static_assert(law::recipe<second_version>(second_version::configured(
    {.virtual_memory_v2 = true, .vmm_small_pool_size = 0, .vmm_v2_handle_size = 3_MiB})));

// Flags (allocator_facade.cc).

std::size_t chosen_by(const paddle_settings& settings) { return paddle_family::index_for(settings); }

TEST(paddle_virtual_memory, flags_choose_the_recipe) {
  EXPECT_TRUE((std::is_same_v<paddle<"">, paddle_family::auto_growth>));
  EXPECT_EQ((paddle<"FLAGS_use_virtual_memory_auto_growth=1">::growth::range_size(1_GiB)), 1_GiB);
  EXPECT_EQ((paddle<"FLAGS_use_vmm_auto_growth_best_fit_allocator_v2=1">::growth::range_size(1_GiB)), 4_GiB);
  EXPECT_EQ(chosen_by({}), 0u);
  EXPECT_EQ(chosen_by(v1()), 2u);
  EXPECT_EQ(chosen_by(v2()), 3u);
  // UseVMMV2AutoGrowthAllocator: the flag of the first version wins.
  EXPECT_EQ(chosen_by({.virtual_memory = true, .virtual_memory_v2 = true}), 2u);
  // The flag that first had two pools needs no other one.
  EXPECT_EQ((paddle<"FLAGS_use_multi_scale_virtual_memory_auto_growth=1">::growth::range_size(1_GiB)), 1_GiB);
  EXPECT_EQ(chosen_by({.multi_scale = true}), 2u);
  EXPECT_EQ(chosen_by({.virtual_memory = true, .multi_scale = true}), 2u);
  EXPECT_EQ(chosen_by({.multi_scale = true, .virtual_memory_v2 = true}), 2u);
}

TEST(paddle_virtual_memory, flags_set_the_numbers) {
  const auto first = first_version::configured(v1());
  EXPECT_EQ(first.pools.boundary.get(), 1_MiB - 256);
  EXPECT_EQ(first.growth.mapping_unit(1), 2_MiB);
  EXPECT_EQ(first_version::configured(v1(0)).pools.boundary.get(), 0u);
  EXPECT_EQ(first_version::configured({.multi_scale = true, .vmm_small_pool_size = 0}).pools.boundary.get(),
            0u);
  const auto second = second_version::configured(v2(3_MiB, 8_MiB, false));
  EXPECT_EQ(second.pools.boundary.get(), 3_MiB - 256);
  EXPECT_EQ(second.growth.large.get(), 8_MiB);
  EXPECT_FALSE(second.growth.moves_idle(1_GiB));
  // CreateVMMAutoGrowthBestFitAllocatorV2: without a size, the threshold is that of a small handle.
  EXPECT_EQ(second_version::configured(v2(0)).pools.boundary.get(), 2_MiB - 256);
}

TEST(paddle_virtual_memory, is_chosen_at_run_time) {
  using family = configured<paddle_family, caching_allocator<paddle<>, simulated_device>>;
  for (const paddle_settings& settings : {v1(), v2(1_MiB, 4_MiB)}) {
    family pool(settings);
    void* const p = pool.allocate(6_MiB);
    EXPECT_EQ(pool.current_usage().reserved, 8_MiB);
    EXPECT_EQ(pool.visit([](auto& in) { return in.provider().calls().map; }),
              settings.virtual_memory ? 1u : 2u);
    pool.deallocate(p);
  }
}

// The first version: virtual_memory_auto_growth_best_fit_allocator.cc and cuda_virtual_mem_allocator.cc.

TEST(paddle_virtual_memory, maps_256_bytes_more_and_whole_pages) {
  // AlignedAllocator asks for the alignment on top, and all of what it gets is a block.
  auto pool = make<first_version>(v1());
  void* const one = pool.allocate(2_MiB - 512);
  EXPECT_EQ(pool.current_usage().reserved, 2_MiB);
  void* const two = pool.allocate(2_MiB);
  EXPECT_EQ(pool.current_usage().reserved, 4_MiB);  // 512 bytes are free at the end
  EXPECT_EQ(number(two), number(one) + 2_MiB - 512);
  void* const three = pool.allocate(2_MiB);
  EXPECT_EQ(pool.current_usage().reserved, 6_MiB);
  for (void* p : {one, two, three}) pool.deallocate(p);
  auto other = make<first_version>(v1());
  pool.deallocate(pool.allocate(64));
  other.deallocate(other.allocate(2_MiB));
  EXPECT_EQ(other.current_usage().reserved, 4_MiB);
}

TEST(paddle_virtual_memory, maps_one_chunk_however_large) {
  // AllocateImpl of cuda_virtual_mem_allocator.cc: one cuMemCreate and one cuMemMap.
  auto pool = make<first_version>(v1());
  pool.deallocate(pool.allocate(101_MiB));
  EXPECT_EQ(pool.current_usage().reserved, 102_MiB);
  EXPECT_EQ(pool.provider().calls().map, 1u);
  EXPECT_EQ(pool.provider().calls().create, 1u);
}

TEST(paddle_virtual_memory, maps_only_what_a_free_block_at_the_end_lacks) {
  // AllocateOrCompact: the deficit.
  auto pool = make<first_version>(v1());
  void* const held = pool.allocate(3_MiB);
  pool.deallocate(pool.allocate(2_MiB));
  EXPECT_EQ(pool.current_usage().reserved, 6_MiB);  // 3 MiB are free at the end
  void* const large = pool.allocate(8_MiB);
  EXPECT_EQ(pool.current_usage().reserved, 12_MiB);
  EXPECT_EQ(number(large), number(held) + 3_MiB);
  for (void* p : {held, large}) pool.deallocate(p);
}

TEST(paddle_virtual_memory, takes_the_smallest_block_then_the_lowest_from_its_low_end) {
  // AllocFromFreeBlocks: lower_bound of (size, address); the rest stays behind the block.
  auto pool = make<first_version>(v1());
  std::vector<void*> blocks;
  for (std::size_t size : {6_MiB, 1_MiB, 4_MiB, 1_MiB, 4_MiB, 1_MiB}) blocks.push_back(pool.allocate(size));
  for (int i : {0, 2, 4}) pool.deallocate(blocks[static_cast<std::size_t>(i)]);
  void* const p = pool.allocate(3_MiB);
  EXPECT_EQ(p, blocks[2]);
  void* const rest = pool.allocate(1_MiB);
  EXPECT_EQ(number(rest), number(p) + 3_MiB);
  for (void* q : {p, rest, blocks[1], blocks[3], blocks[5]}) pool.deallocate(q);
}

TEST(paddle_virtual_memory, keeps_a_rest_of_256_bytes) {
  // NeedSplit: more than twice the size, or more than 256 bytes left.
  for (const auto& [block, wanted, splits] :
       {std::tuple{512, 256, false}, {768, 512, false}, {1024, 256, true}, {1024, 512, true}}) {
    const auto p = recipe::policies<first_version>{};
    EXPECT_EQ(p.split.should_split(static_cast<std::size_t>(wanted), static_cast<std::size_t>(block)),
              splits);
  }
  const auto p = recipe::policies<second_version>{};  // AllocFromFreeBlocks of the second version: any rest
  EXPECT_TRUE(p.split.should_split(256, 512));
}

TEST(paddle_virtual_memory, merges_with_both_neighbours) {
  // TryMergeBlock2Blocks.
  auto pool = make<first_version>(v1());
  std::vector<void*> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(pool.allocate(2_MiB));
  for (int i : {0, 2, 1}) pool.deallocate(blocks[static_cast<std::size_t>(i)]);
  EXPECT_EQ(pool.allocate(6_MiB), blocks[0]);
  pool.deallocate(blocks[0]), pool.deallocate(blocks[3]);
}

TEST(paddle_virtual_memory, small_blocks_are_smaller_than_the_boundary) {
  // IsSmallRequest compares the aligned size. Each pool and each stream has a range.
  auto pool = make<first_version>(v1());
  void* const small = pool.allocate(1_MiB - 256);
  void* const large = pool.allocate(1_MiB - 255);
  EXPECT_EQ(pool.provider().calls().reserve, 2u);
  void* const other = pool.allocate(256, stream_id{1});
  EXPECT_EQ(pool.provider().calls().reserve, 3u);
  for (void* p : {small, large, other}) pool.deallocate(p);
}

TEST(paddle_virtual_memory, has_one_pool_without_a_boundary) {
  auto pool = make<first_version>(v1(0));
  void* const small = pool.allocate(256);
  void* const large = pool.allocate(1_MiB);
  EXPECT_EQ(number(large), number(small) + 256);
  pool.deallocate(small), pool.deallocate(large);
}

TEST(paddle_virtual_memory, fails_if_what_it_maps_exceeds_the_addresses) {
  auto pool = make<first_version>(v1(), 64_MiB);
  EXPECT_EQ(pool.try_allocate(64_MiB), nullptr);  // 66 MiB would be mapped
  void* const p = pool.try_allocate(64_MiB - 256);
  EXPECT_NE(p, nullptr);
  pool.deallocate(p);
}

TEST(paddle_virtual_memory, never_gives_memory_to_another_pool_or_stream) {
  auto pool = make<first_version>(v1(), 64_MiB);
  pool.deallocate(pool.allocate(40_MiB));
  EXPECT_EQ(pool.try_allocate(30_MiB, stream_id{1}), nullptr);
  void* const p = pool.allocate(40_MiB);
  pool.trim();
  EXPECT_EQ(pool.current_usage().reserved, 42_MiB);
  pool.deallocate(p);
  pool.trim();  // not in Paddle
  EXPECT_EQ(pool.current_usage().reserved, 0u);
  pool.deallocate(pool.allocate(30_MiB, stream_id{1}));
}

TEST(paddle_virtual_memory, a_completed_block_serves_before_memory_is_mapped) {
  // stream_safe_cuda_allocator.cc: the first refusal frees completed blocks and tries again.
  auto pool = make<first_version>(v1(), 64_MiB);
  void* const p = pool.allocate(40_MiB);
  ASSERT_TRUE(pool.record_stream(p, stream_id{3}));
  pool.provider().submit(stream_id{3}, 1'000'000'000);
  pool.deallocate(p);
  EXPECT_EQ(pool.try_allocate(40_MiB), nullptr);
  pool.provider().advance(1'000'000'000);
  EXPECT_EQ(pool.try_allocate(40_MiB), p);
  pool.deallocate(p);
}

TEST(paddle_virtual_memory, the_limit_counts_mapped_bytes_unlike_in_paddle) {
  paddle_settings settings = v1();
  settings.gpu_memory_limit = 10_MiB;
  auto pool = make<first_version>(settings);
  void* const p = pool.allocate(7_MiB);
  EXPECT_EQ(pool.current_usage().reserved, 8_MiB);
  void* const rest = pool.try_allocate(3_MiB - 256);  // of which 1 MiB is free at the end
  EXPECT_NE(rest, nullptr);
  EXPECT_EQ(pool.current_usage().reserved, 10_MiB);
  EXPECT_EQ(pool.try_allocate(1_MiB), nullptr);
  pool.deallocate(p), pool.deallocate(rest);
}

TEST(paddle_virtual_memory, addresses_do_not_run_out) {
  auto pool = make<first_version>(v1(), 64_MiB);
  for (int i = 0; i < 100; ++i) {
    void* const p = pool.try_allocate(30_MiB);
    ASSERT_NE(p, nullptr) << i;
    pool.deallocate(p);
    pool.trim();
  }
}

// Paddle's vmm_auto_growth_best_fit_allocator_test.cu. Its other tests read Paddle's lists of blocks.

TEST(paddle_virtual_memory, blocks_follow_each_other_and_merge) {  // TestAllBlocksInfoVisitor
  auto pool = make<first_version>(v1());
  void* const p = pool.allocate(256);
  EXPECT_EQ(pool.current_usage().allocated, 256u);
  EXPECT_EQ(pool.current_usage().cached, 2_MiB - 256);
  pool.deallocate(p);
  EXPECT_EQ(pool.current_usage().cached, 2_MiB);
}

TEST(paddle_virtual_memory, pools_of_20_mib_are_apart) {  // TestPoolFilterLargeOnly
  auto pool = make<first_version>(v1(20_MiB));
  void* const small = pool.allocate(1_MiB);
  void* const large = pool.allocate(30_MiB);
  EXPECT_EQ(pool.provider().calls().reserve, 2u);
  EXPECT_EQ(pool.current_usage().reserved, 2_MiB + 32_MiB);
  pool.deallocate(small), pool.deallocate(large);
}

// multi_scale_allocator_test.cc of November 2025, when two pools had a flag of their own.

TEST(paddle_virtual_memory, multi_scale_has_two_pools) {  // MultiScaleAlloc
  auto pool = make<first_version>({.multi_scale = true, .vmm_small_pool_size = 20_MiB});
  void* const small = pool.allocate(10_MiB);
  void* const large = pool.allocate(30_MiB);
  EXPECT_EQ(pool.provider().calls().reserve, 2u);
  EXPECT_EQ(pool.current_usage().reserved, 44_MiB);
  // IsSmallRequest of these versions: up to the size, not below it.
  void* const equal = pool.allocate(20_MiB);
  EXPECT_EQ(number(equal), number(small) + 10_MiB);
  void* const more = pool.allocate(20_MiB + 1);
  EXPECT_EQ(number(more), number(large) + 30_MiB);
  for (void* p : {small, large, equal, more}) pool.deallocate(p);
}

TEST(paddle_virtual_memory, multi_scale_has_no_small_blocks_by_default) {
  caching_allocator<paddle<"FLAGS_use_multi_scale_virtual_memory_auto_growth=True">, simulated_device> pool;
  void* const small = pool.allocate(256);
  void* const large = pool.allocate(3_MiB);
  EXPECT_EQ(number(large), number(small) + 256);
  EXPECT_EQ(pool.provider().calls().reserve, 1u);
  pool.deallocate(small), pool.deallocate(large);
}

// Of Paddle's tests of the second version, those of rollbacks after exceptions, of internal lists (ReplaceRange...,
// RestoreUnmappedRange...) and of events (...Pending..., Merge...Streams) have no counterpart: faults are in
// conformance/shipped_faults_test.cpp, and a stream is waited for. Two decide differently here, as the recipe says:
// SkipStaleUnmappedFreeRange, OOMRemapSkipsPendingOwningStreamEvents. Those of sharing between processes (IPC...) need more than
// the recipe: extension::registrations, which keeps what was exported in its place, and observe::list_chunks.

// The second version: vmm_auto_growth_best_fit_allocator_v2.cc and cuda_virtual_mem_allocator_v2.cc. The tests in brackets
// are Paddle's, in vmm_auto_growth_best_fit_allocator_v2_test.cu, with handles of 2 MiB.

auto handles_of_2_mib(std::size_t capacity = 16_GiB, bool remaps = true) {
  return make<second_version>(v2(1_MiB, 2_MiB, remaps), capacity);
}

TEST(paddle_virtual_memory_v2, maps_handles_of_the_pool) {
  auto pool = make<second_version>(v2());
  void* const small = pool.allocate(1);
  EXPECT_EQ(pool.current_usage().reserved, 2_MiB);
  void* const large = pool.allocate(17_MiB);
  EXPECT_EQ(pool.current_usage().reserved, 34_MiB);
  EXPECT_EQ(pool.provider().calls().map, 3u);
  pool.deallocate(small), pool.deallocate(large);
}

TEST(paddle_virtual_memory_v2, handles_are_whole_pages) {
  // InitOnce rounds the size of handles up to the device's granularity.
  auto pool = make<second_version>(v2(1_MiB, 3_MiB));
  pool.deallocate(pool.allocate(1_MiB));
  EXPECT_EQ(pool.current_usage().reserved, 4_MiB);
}

TEST(paddle_virtual_memory_v2, takes_the_smallest_sufficient_block) {  // ReuseSmallestSufficientFreeBlock
  auto pool = handles_of_2_mib();
  void* const large = pool.allocate(4_MiB);
  void* const separator = pool.allocate(2_MiB);
  void* const small = pool.allocate(2_MiB);
  pool.deallocate(large), pool.deallocate(small);
  EXPECT_EQ(pool.allocate(2_MiB), small);
  EXPECT_EQ(pool.current_usage().cached, 4_MiB);
  pool.deallocate(small), pool.deallocate(separator);
}

TEST(paddle_virtual_memory_v2, splits_new_memory_across_two_handles) {  // SplitGrowBlockAcrossTwoHandles
  auto pool = handles_of_2_mib();
  void* const p = pool.allocate(2_MiB + 256);
  EXPECT_EQ(pool.current_usage().allocated, 2_MiB + 256);
  EXPECT_EQ(pool.current_usage().cached, 2_MiB - 256);
  pool.deallocate(p);
  EXPECT_EQ(pool.allocate(4_MiB), p);  // MergeSplitFreeSlicesAsBlockView
  pool.deallocate(p);
}

TEST(paddle_virtual_memory_v2, adds_to_a_free_block_at_the_end) {  // FreeBlockTooSmallFallsBackToGrow
  auto pool = handles_of_2_mib();
  void* const small = pool.allocate(2_MiB);
  pool.deallocate(small);
  EXPECT_EQ(pool.allocate(4_MiB), small);
  EXPECT_EQ(pool.current_usage().reserved, 4_MiB);
  EXPECT_EQ(pool.current_usage().cached, 0u);
  pool.deallocate(small);
}

TEST(paddle_virtual_memory_v2, gives_back_whole_handles_and_fills_their_addresses) {
  // ReleaseImpl gives back each handle that lies in free blocks; AllocFromUnmappedFreeBlocks fills the smallest hole.
  auto pool = handles_of_2_mib();
  std::vector<void*> blocks;
  for (std::size_t size : {6_MiB, 2_MiB, 4_MiB, 2_MiB}) blocks.push_back(pool.allocate(size));
  pool.deallocate(blocks[0]), pool.deallocate(blocks[2]);
  pool.trim();
  EXPECT_EQ(pool.current_usage().reserved, 4_MiB);
  void* const p = pool.allocate(3_MiB);
  EXPECT_EQ(p, blocks[2]);
  EXPECT_EQ(pool.current_usage().reserved, 8_MiB);
  EXPECT_EQ(pool.current_usage().cached, 1_MiB);
  for (void* q : {p, blocks[1], blocks[3]}) pool.deallocate(q);
}

TEST(paddle_virtual_memory_v2, merges_three_blocks) {  // ThreeWayMerge
  auto pool = handles_of_2_mib();
  std::vector<void*> blocks;
  for (int i = 0; i < 3; ++i) blocks.push_back(pool.allocate(2_MiB));
  for (const std::size_t i : {0u, 2u, 1u}) pool.deallocate(blocks[i]);
  EXPECT_EQ(pool.allocate(6_MiB), blocks[0]);
  EXPECT_EQ(pool.current_usage().reserved, 6_MiB);
  pool.deallocate(blocks[0]);
}

TEST(paddle_virtual_memory_v2, fills_only_as_much_of_a_hole_as_it_needs) {  // ReuseUnmappedFreeBlock
  auto pool = handles_of_2_mib();
  void* const first = pool.allocate(2_MiB);
  void* const middle = pool.allocate(4_MiB);
  void* const last = pool.allocate(2_MiB);
  pool.deallocate(middle);
  pool.trim();
  EXPECT_EQ(pool.current_usage().reserved, 4_MiB);  // ReleaseMiddleChunk
  EXPECT_EQ(pool.allocate(1_MiB), middle);
  EXPECT_EQ(pool.current_usage().reserved, 6_MiB);
  EXPECT_EQ(pool.current_usage().cached, 1_MiB);
  for (void* p : {first, middle, last}) pool.deallocate(p);
}

TEST(paddle_virtual_memory_v2, gives_nothing_back_while_all_is_live) {  // ReleaseWithNoIdleChunkReturnsZero
  auto pool = handles_of_2_mib();
  void* const p = pool.allocate(2_MiB);
  pool.trim();
  EXPECT_EQ(pool.provider().calls().unmap, 0u);
  pool.deallocate(p);
}

TEST(paddle_virtual_memory_v2,
     a_free_block_at_the_end_counts_and_does_not_move) {  // BoundedCompactCountsTailFree
  auto pool = handles_of_2_mib(12_MiB);
  std::vector<void*> blocks;
  for (std::size_t size : {2_MiB, 2_MiB, 4_MiB}) blocks.push_back(pool.allocate(size));
  void* const others = pool.allocate(3_MiB, stream_id{1});
  pool.deallocate(blocks[0]), pool.deallocate(blocks[2]);
  void* const p = pool.try_allocate(4_MiB + 256);
  EXPECT_EQ(p, blocks[2]);
  EXPECT_EQ(pool.provider().calls().unmap, 1u);
  EXPECT_EQ(pool.current_usage().reserved, 12_MiB);
  for (void* q : {p, blocks[1], others}) pool.deallocate(q);
}

TEST(paddle_virtual_memory_v2, a_hole_keeps_the_free_memory_before_it_apart) {
  auto pool = handles_of_2_mib();
  void* const a = pool.allocate(1_MiB);
  void* const b = pool.allocate(5_MiB);
  void* const c = pool.allocate(2_MiB);
  pool.deallocate(b);
  pool.trim();  // of b, 1 MiB shares the handle of a
  EXPECT_EQ(pool.current_usage().reserved, 4_MiB);
  void* const p = pool.allocate(4_MiB);
  EXPECT_EQ(number(p), number(a) + 2_MiB);
  EXPECT_EQ(pool.current_usage().cached, 1_MiB);
  for (void* q : {a, c, p}) pool.deallocate(q);
}

TEST(paddle_virtual_memory_v2, the_end_moves_back_when_the_last_handles_are_released) {
  // TrimTrailingUnmappedFreeBlocks, SetTailOffset
  auto pool = handles_of_2_mib();
  void* const held = pool.allocate(2_MiB);
  void* const tail = pool.allocate(2_MiB);
  pool.deallocate(tail);
  pool.trim();
  EXPECT_EQ(pool.allocate(4_MiB), tail);
  pool.deallocate(tail), pool.deallocate(held);
}

TEST(paddle_virtual_memory_v2, idle_handles_move_to_the_end_if_the_device_refuses) {
  // RemapForAllocation, FreeBlockRemapCompactor
  auto pool = handles_of_2_mib(16_MiB);
  std::vector<void*> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(pool.allocate(2_MiB));
  for (const std::size_t i : {0u, 2u, 4u}) pool.deallocate(blocks[i]);
  void* const p = pool.try_allocate(4_MiB);
  ASSERT_NE(p, nullptr);
  EXPECT_EQ(number(p), number(blocks[7]) + 2_MiB);
  EXPECT_EQ(pool.current_usage().reserved, 16_MiB);
  EXPECT_EQ(pool.provider().calls().unmap, 2u);
  EXPECT_EQ(pool.allocate(2_MiB), blocks[4]);  // the handle that did not move
  EXPECT_EQ(pool.try_allocate(2_MiB), nullptr);
  EXPECT_STREQ(pool.audit(), nullptr);
}

TEST(paddle_virtual_memory_v2, only_what_the_device_does_not_give_moves) {
  auto pool = handles_of_2_mib(16_MiB);
  std::vector<void*> blocks;
  for (int i = 0; i < 7; ++i) blocks.push_back(pool.allocate(2_MiB));
  for (const std::size_t i : {0u, 2u, 4u}) pool.deallocate(blocks[i]);
  void* const p = pool.try_allocate(4_MiB);
  ASSERT_NE(p, nullptr);
  EXPECT_EQ(pool.provider().calls().unmap, 1u);
  EXPECT_EQ(pool.current_usage().reserved, 16_MiB);
}

TEST(paddle_virtual_memory_v2, a_block_with_more_idle_handles_gives_them_first) {
  // PrioritizeContiguousSourceRanges
  auto pool = handles_of_2_mib(16_MiB);
  std::vector<void*> blocks;
  for (std::size_t size : {2_MiB, 2_MiB, 4_MiB, 8_MiB}) blocks.push_back(pool.allocate(size));
  pool.deallocate(blocks[0]), pool.deallocate(blocks[2]);
  void* const p = pool.try_allocate(6_MiB);
  ASSERT_NE(p, nullptr);
  EXPECT_EQ(number(p), number(blocks[3]) + 8_MiB);
  EXPECT_EQ(pool.provider().calls().unmap, 3u);
  pool.deallocate(p);
  EXPECT_EQ(pool.try_allocate(8_MiB), nullptr);
}

TEST(paddle_virtual_memory_v2, the_device_gives_what_is_not_idle) {  // BoundedCompactUsesDriverTopUp
  // Paddle asks the device before it moves anything, and keeps the number of handles that it got.
  auto pool = handles_of_2_mib(10_MiB);
  std::vector<void*> blocks;
  for (int i = 0; i < 3; ++i) blocks.push_back(pool.allocate(2_MiB));
  pool.deallocate(blocks[1]);
  void* const p = pool.try_allocate(6_MiB);
  ASSERT_NE(p, nullptr);
  EXPECT_EQ(number(p), number(blocks[2]) + 2_MiB);
  EXPECT_EQ(pool.provider().calls().unmap, 1u);
  EXPECT_EQ(pool.current_usage().reserved, 10_MiB);
  for (void* q : {p, blocks[0], blocks[2]}) pool.deallocate(q);
}

TEST(paddle_virtual_memory_v2, nothing_moves_if_the_device_gives_too_little) {
  // RemapForAllocation compares what may move with the handles that the device did not give. So does the third part of
  // StreamSafeOOMDispatchesByAllocatorType, in vmm_auto_growth_best_fit_multi_pool_allocator_v2_test.cu.
  auto pool = handles_of_2_mib(8_MiB);
  std::vector<void*> blocks;
  for (int i = 0; i < 3; ++i) blocks.push_back(pool.allocate(2_MiB));
  pool.deallocate(blocks[1]);
  EXPECT_EQ(pool.try_allocate(6_MiB), nullptr);
  EXPECT_EQ(pool.provider().calls().unmap, 0u);
  EXPECT_EQ(pool.current_usage().reserved, 6_MiB);
  EXPECT_EQ(pool.allocate(2_MiB), blocks[1]);
  for (void* q : blocks) pool.deallocate(q);
}

TEST(paddle_virtual_memory_v2, nothing_moves_if_too_little_is_idle) {
  auto pool = handles_of_2_mib(16_MiB);
  std::vector<void*> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(pool.allocate(2_MiB));
  for (const std::size_t i : {0u, 2u}) pool.deallocate(blocks[i]);
  EXPECT_EQ(pool.try_allocate(6_MiB), nullptr);
  EXPECT_EQ(pool.provider().calls().unmap, 0u);
  EXPECT_EQ(pool.allocate(2_MiB), blocks[0]);
}

TEST(paddle_virtual_memory_v2, nothing_moves_without_the_flag_or_for_small_blocks) {
  auto pool = handles_of_2_mib(8_MiB, false);
  std::vector<void*> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(pool.allocate(2_MiB));
  for (const std::size_t i : {0u, 2u}) pool.deallocate(blocks[i]);
  EXPECT_EQ(pool.try_allocate(4_MiB), nullptr);
  // CompactImpl of vmm_auto_growth_best_fit_multi_pool_allocator_v2.cc
  auto small = make<second_version>(v2(8_MiB, 2_MiB), 8_MiB);
  blocks.clear();
  for (int i = 0; i < 4; ++i) blocks.push_back(small.allocate(2_MiB));
  for (const std::size_t i : {0u, 2u}) small.deallocate(blocks[i]);
  EXPECT_EQ(small.try_allocate(4_MiB), nullptr);
}

TEST(paddle_virtual_memory_v2, a_part_of_a_handle_does_not_move) {
  auto pool = handles_of_2_mib(8_MiB);
  std::vector<void*> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(pool.allocate(1_MiB));
  for (const std::size_t i : {0u, 2u, 4u, 6u}) pool.deallocate(blocks[i]);
  EXPECT_EQ(pool.try_allocate(2_MiB), nullptr);
}

TEST(paddle_virtual_memory_v2, within_the_limit_idle_handles_move) {
  paddle_settings settings = v2(1_MiB, 2_MiB);
  settings.gpu_memory_limit = 8_MiB;
  auto pool = make<second_version>(settings);
  std::vector<void*> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(pool.allocate(2_MiB));
  for (const std::size_t i : {0u, 2u}) pool.deallocate(blocks[i]);
  EXPECT_NE(pool.try_allocate(4_MiB), nullptr);
  EXPECT_EQ(pool.current_usage().reserved, 8_MiB);
}

// Memory that another process knows. In Paddle, an export holds its handles for good. Here, the program says when the other
// process has forgotten them.

using held_in_place = extension::registrations<>;
using sharing_pool = caching_allocator<second_version, simulated_device, held_in_place>;

sharing_pool sharing_handles_of_2_mib(std::size_t capacity = 16_GiB) {
  return sharing_pool(simulated_device(simulated_device::options{.capacity = capacity}),
                      second_version::configured(v2(1_MiB, 2_MiB)));
}
/// Exports a part of a live block, and keeps it in its place. Returns the handles behind the part, or none if that failed.
std::vector<provider::mapped_chunk<simulated_device>> share(sharing_pool& pool, const void* p,
                                                            std::size_t bytes) {
  auto list = observe::list_chunks(pool, p, bytes);
  const auto names = provider::export_chunks<simulated_device>(pool.provider(), list.chunks);
  if (names.chunks.size() != list.chunks.size()) return {};
  if (!pool.get<held_in_place>().register_memory(p, bytes)) return {};
  return std::move(list.chunks);
}

TEST(paddle_virtual_memory_v2, exported_handles_stay_and_serve_again) {  // IPCExportKeepsReuse
  auto pool = sharing_handles_of_2_mib(6_MiB);
  auto* const p = static_cast<std::byte*>(pool.allocate(4_MiB));
  const auto handles = share(pool, p + 128, 2_MiB - 128 + 2048);
  ASSERT_EQ(handles.size(), 2u);  // whole handles, although the part has little of the second
  EXPECT_EQ(handles[0].address, number(p));
  EXPECT_EQ(handles[1].address, number(p) + 2_MiB);
  for (const auto& h : handles) EXPECT_EQ(h.bytes, 2_MiB);
  EXPECT_EQ(pool.get<held_in_place>().bytes(), 4_MiB);

  pool.deallocate(p);
  EXPECT_EQ(pool.current_usage().cached, 4_MiB);
  pool.trim();
  EXPECT_EQ(pool.current_usage().reserved, 4_MiB);
  void* const other = pool.allocate(2_MiB, stream_id{1});
  EXPECT_EQ(pool.try_allocate(8_MiB), nullptr);
  EXPECT_EQ(pool.provider().calls().unmap, 0u);

  EXPECT_EQ(pool.allocate(4_MiB), p);
  EXPECT_EQ(pool.current_usage().reserved, 6_MiB);
  const auto again = observe::list_chunks(pool, p);
  ASSERT_EQ(again.chunks.size(), 2u);
  for (std::size_t i = 0; i < 2; ++i)
    EXPECT_EQ(again.chunks[i].memory.number, handles[i].memory.number) << "another process reads this memory";

  pool.deallocate(p), pool.deallocate(other);
  ASSERT_TRUE(pool.get<held_in_place>().deregister_memory(p + 128, 2_MiB - 128 + 2048));
  pool.trim();
  EXPECT_EQ(pool.current_usage().reserved, 0u);
  EXPECT_STREQ(pool.audit(), nullptr);
}

TEST(paddle_virtual_memory_v2,
     the_neighbour_of_an_exported_handle_goes_back) {  // IPCPinAllowsNeighborRelease
  auto pool = sharing_handles_of_2_mib();
  void* const exported = pool.allocate(2_MiB);
  void* const regular = pool.allocate(2_MiB);
  ASSERT_EQ(share(pool, exported, 2_MiB).size(), 1u);
  pool.deallocate(regular), pool.deallocate(exported);
  EXPECT_EQ(pool.current_usage().cached, 4_MiB);
  pool.trim();
  EXPECT_EQ(pool.current_usage().reserved, 2_MiB);
  EXPECT_EQ(pool.provider().calls().unmap, 1u);
  EXPECT_EQ(pool.allocate(2_MiB), exported);
  EXPECT_EQ(pool.current_usage().reserved, 2_MiB);
  EXPECT_EQ(pool.allocate(2_MiB), regular);  // the end had moved back
  EXPECT_STREQ(pool.audit(), nullptr);
  pool.deallocate(exported), pool.deallocate(regular);
}

TEST(paddle_virtual_memory_v2, the_neighbour_of_an_exported_handle_moves) {  // IPCPinAllowsNeighborCompact
  for (const bool has_room : {true, false}) {
    auto pool = sharing_handles_of_2_mib(has_room ? 10_MiB : 8_MiB);
    void* const exported = pool.allocate(2_MiB);
    void* const regular = pool.allocate(2_MiB);
    void* const anchor = pool.allocate(2_MiB);
    const auto handles = share(pool, exported, 2_MiB);
    ASSERT_EQ(handles.size(), 1u);
    pool.deallocate(regular), pool.deallocate(exported);
    void* const p = pool.try_allocate(6_MiB);
    if (!has_room) {  // the exported handle does not count as one that could move
      EXPECT_EQ(p, nullptr);
      EXPECT_EQ(pool.provider().calls().unmap, 0u);
      pool.deallocate(anchor);
      continue;
    }
    EXPECT_EQ(number(p), number(anchor) + 2_MiB);
    EXPECT_EQ(pool.provider().calls().unmap, 1u);
    EXPECT_EQ(pool.allocate(2_MiB), exported);
    EXPECT_EQ(observe::list_chunks(pool, exported).chunks.at(0).memory.number, handles[0].memory.number);
    EXPECT_EQ(pool.try_allocate(2_MiB), nullptr);  // the neighbour's addresses are a hole
    EXPECT_STREQ(pool.audit(), nullptr);
    for (void* q : {p, exported, anchor}) pool.deallocate(q);
  }
}

TEST(paddle_virtual_memory_v2, a_free_range_has_no_handles_to_share) {  // CollectTensorPartsRejectsFreeRange
  auto pool = sharing_handles_of_2_mib();
  void* const p = pool.allocate(2_MiB);
  pool.deallocate(p);
  EXPECT_FALSE(observe::list_chunks(pool, p, 2_MiB));
}

// Models.

/// The bytes that all pools and streams have of a device.
struct model_device {
  std::size_t capacity;
  std::size_t taken = 0;
};
struct calls {
  std::size_t map = 0, unmap = 0;
};
/// What happened in all programs, so that a test can tell that it tested something.
struct coverage {
  std::size_t refused = 0, holes = 0, moved_to_end = 0, moved_to_hole = 0;
};

/// One pool of one stream of Paddle's allocators, as their sources describe them: all blocks by address, relative to the
/// range.
class model {
 public:
  struct rules {
    std::size_t unit;        ///< granularity, or the size of handles
    bool is_second_version;  ///< handles, holes and exact splits
    bool moves;
  };
  model(model_device& device, calls& counted, coverage& covered, rules r)
      : device_(&device), calls_(&counted), covered_(&covered), rules_(r) {}

  std::optional<std::size_t> allocate(std::size_t size) {
    if (const auto found = best(kind::free, size)) return serve(*found, size);
    const std::size_t whole = mapped_for(size);
    if (const auto hole = best(kind::hole, whole)) {
      if (take(whole)) {
        ++covered_->holes;
        const std::size_t rest = blocks_[*hole].size - whole;
        blocks_.erase(*hole);
        if (rest > 0) blocks_[*hole + whole] = {rest, kind::hole};
        blocks_[*hole] = {size, kind::live};
        if (whole > size) blocks_[*hole + size] = {whole - size, kind::free}, merge(*hole + size);
        return hole;
      }
    }
    const std::size_t missing = mapped_for(size - tail_free());
    if (end_ + missing <= addresses() && take(missing)) return append(missing, size);
    return rules_.moves && end_ + missing <= addresses() ? move(missing, size) : std::nullopt;
  }
  void free(std::size_t at) {
    blocks_[at].what = kind::free;
    merge(at);
  }
  /// Gives back each handle in free blocks.
  void release() {
    for (std::size_t at = 0; at < end_; at += rules_.unit) {
      const auto [begin, b] = block_at(at);
      if (b.what == kind::free && begin + b.size >= at + rules_.unit) detach(at);
    }
    while (!blocks_.empty() && blocks_.rbegin()->second.what == kind::hole) {
      end_ = blocks_.rbegin()->first;
      blocks_.erase(std::prev(blocks_.end()));
    }
  }
  [[nodiscard]] bool is_empty() const { return blocks_.empty(); }

 private:
  enum class kind { live, free, hole };
  struct block {
    std::size_t size;
    kind what;
  };

  [[nodiscard]] std::size_t addresses() const {
    return rules_.is_second_version ? ~std::size_t{0} : device_->capacity;
  }
  [[nodiscard]] std::size_t mapped_for(std::size_t bytes) const {
    const std::size_t padded = rules_.is_second_version ? bytes : bytes + 256;
    return (padded + rules_.unit - 1) / rules_.unit * rules_.unit;
  }
  [[nodiscard]] std::optional<std::size_t> best(kind what, std::size_t size) const {
    std::optional<std::size_t> found;
    for (const auto& [at, b] : blocks_) {
      if (b.what == what && b.size >= size && (!found || b.size < blocks_.at(*found).size)) found = at;
    }
    return found;
  }
  std::size_t serve(std::size_t at, std::size_t size) {
    block& b = blocks_[at];
    const std::size_t rest = b.size - size;
    b.what = kind::live;
    if (rules_.is_second_version ? rest > 0 : rest > size || rest > 256) {
      b.size = size;
      blocks_[at + size] = {rest, kind::free};
    }
    return at;
  }
  /// Takes bytes from the device, all or none.
  bool take(std::size_t bytes) {
    if (device_->taken + bytes > device_->capacity) return false;
    device_->taken += bytes;
    calls_->map += rules_.is_second_version ? bytes / rules_.unit : 1;
    return true;
  }
  [[nodiscard]] std::size_t tail_free() const {
    return !blocks_.empty() && blocks_.rbegin()->second.what == kind::free ? blocks_.rbegin()->second.size
                                                                           : 0;
  }
  std::size_t append(std::size_t bytes, std::size_t size) {
    const std::size_t at = end_ - tail_free();
    blocks_[at] = {tail_free() + bytes, kind::free};
    end_ += bytes;
    return serve(at, size);
  }
  void merge(std::size_t at) {
    auto it = blocks_.find(at);
    if (it != blocks_.begin() && std::prev(it)->second.what == it->second.what) {
      const auto before = std::prev(it);
      before->second.size += it->second.size;
      blocks_.erase(it);
      it = before;
    }
    const auto after = std::next(it);
    if (after != blocks_.end() && after->second.what == it->second.what) {
      it->second.size += after->second.size;
      blocks_.erase(after);
    }
  }
  [[nodiscard]] std::pair<std::size_t, block> block_at(std::size_t at) const {
    return *std::prev(blocks_.upper_bound(at));
  }
  /// Makes the addresses of a handle a hole.
  void detach(std::size_t at) {
    const auto [begin, b] = block_at(at);
    blocks_.erase(begin);
    if (begin < at) blocks_[begin] = {at - begin, kind::free};
    const std::size_t end = at + rules_.unit;
    if (end < begin + b.size) blocks_[end] = {begin + b.size - end, kind::free};
    blocks_[at] = {rules_.unit, kind::hole};
    merge(at);
    device_->taken -= rules_.unit;
    ++calls_->unmap;
  }
  /// Moves handles of free blocks: those of the block with the most whole handles first, then the lowest. The last block
  /// gives none, if it is free.
  std::optional<std::size_t> move(std::size_t missing, std::size_t size) {
    const std::size_t unit = rules_.unit;
    const std::size_t created = (device_->capacity - device_->taken) / unit;
    const std::size_t needed = missing / unit - created;
    std::multimap<std::size_t, std::size_t, std::greater<>> sources;  // whole handles, first handle
    for (const auto& [at, b] : blocks_) {
      const std::size_t first = (at + unit - 1) / unit * unit;
      const std::size_t last = (at + b.size) / unit * unit;
      if (b.what == kind::free && at + b.size < end_ && last > first)
        sources.emplace((last - first) / unit, first);
    }
    std::vector<std::size_t> moved;
    for (const auto& [count, first] : sources) {
      for (std::size_t i = 0; i < count && moved.size() < needed; ++i) moved.push_back(first + i * unit);
    }
    if (moved.size() < needed) return std::nullopt;
    std::optional<std::size_t> hole;  // the lowest that holds all, if no other memory helps
    for (const auto& [at, b] : blocks_) {
      if (b.what == kind::hole && b.size >= missing && !hole && needed == mapped_for(size) / unit) hole = at;
    }
    for (const std::size_t at : moved) detach(at);
    EXPECT_TRUE(take(missing));
    ++(hole ? covered_->moved_to_hole : covered_->moved_to_end);
    if (!hole) return append(missing, size);
    const auto [begin, b] = block_at(*hole);
    blocks_.erase(begin);
    if (begin < *hole) blocks_[begin] = {*hole - begin, kind::hole};
    const std::size_t end = *hole + missing;
    if (end < begin + b.size) blocks_[end] = {begin + b.size - end, kind::hole};
    blocks_[*hole] = {missing, kind::free};
    merge(*hole);
    return serve(block_at(*hole).first, size);
  }

  model_device* device_;
  calls* calls_;
  coverage* covered_;
  rules rules_;
  std::map<std::size_t, block> blocks_;
  std::size_t end_ = 0;
};

/// Runs a random program, and compares each address with the model's, relative to its range, and the device's calls.
template <typename Recipe>
void compare_with_model(std::uint64_t seed, const paddle_settings& settings, std::size_t capacity, bool trims,
                        coverage& covered) {
  constexpr bool is_second = std::is_same_v<Recipe, second_version>;
  auto pool = make<Recipe>(settings, capacity);
  model_device device{capacity};
  calls counted;
  struct one_list {
    model expected;
    std::optional<std::uintptr_t> base;
  };
  std::map<std::pair<bool, std::uint64_t>, one_list> lists;
  const std::size_t small_below = settings.vmm_small_pool_size > 0
                                      ? settings.vmm_small_pool_size + settings.multi_scale
                                  : is_second ? 2_MiB
                                              : 0;
  const auto list_for = [&](std::size_t size, std::uint64_t stream) -> one_list& {
    const bool is_small = size < small_below;
    const std::size_t unit = is_second && !is_small ? settings.vmm_v2_handle_size : 2_MiB;
    const model::rules rules{unit, is_second, is_second && !is_small && settings.vmm_v2_remap_on_oom};
    return lists
        .try_emplace({is_small, stream}, one_list{model(device, counted, covered, rules), std::nullopt})
        .first->second;
  };
  struct live {
    void* p;
    std::size_t at;
    one_list* in;
  };
  std::vector<live> blocks;
  std::mt19937_64 random(seed);
  const auto below = [&random](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  for (int step = 0; step < 160; ++step) {
    if (trims && below(20) == 0) {
      pool.trim();
      for (auto& [key, list] : lists) {
        list.expected.release();
        if (list.expected.is_empty()) list.base.reset();
      }
    } else if (!blocks.empty() && below(5) < 2) {
      std::swap(blocks[below(blocks.size())], blocks.back());
      blocks.back().in->expected.free(blocks.back().at);
      pool.deallocate(blocks.back().p);
      blocks.pop_back();
    } else {
      constexpr std::size_t classes[] = {2000, 600'000, 3_MiB, 9_MiB, 40_MiB};
      const std::size_t kind = below(std::size(classes) + 1);
      const std::size_t bytes = kind < std::size(classes) ? 1 + below(classes[kind]) : 2_MiB * (1 + below(8));
      const std::uint64_t stream = below(4) == 0 ? 1 : 0;
      const std::size_t size = (bytes + 255) / 256 * 256;
      one_list& list = list_for(size, stream);
      const std::optional<std::size_t> at = list.expected.allocate(size);
      void* const p = pool.try_allocate(bytes, stream_id{stream});
      covered.refused += p == nullptr ? 1 : 0;
      ASSERT_EQ(p != nullptr, at.has_value())
          << "seed " << seed << ", step " << step << ", " << bytes << " bytes";
      if (p != nullptr) {
        if (!list.base) list.base = number(p) - *at;
        ASSERT_EQ(number(p) - *list.base, *at)
            << "seed " << seed << ", step " << step << ", " << bytes << " bytes";
        blocks.push_back({p, *at, &list});
      }
    }
    ASSERT_EQ(pool.current_usage().reserved, device.taken) << "seed " << seed << ", step " << step;
    ASSERT_EQ(pool.provider().calls().map, counted.map) << "seed " << seed << ", step " << step;
    ASSERT_EQ(pool.provider().calls().unmap, counted.unmap) << "seed " << seed << ", step " << step;
  }
  ASSERT_STREQ(pool.audit(), nullptr);
  for (const live& b : blocks) pool.deallocate(b.p);
}

constexpr std::uint64_t programs = by_day(384, 6000);
constexpr std::size_t small_sizes[] = {0, 1_MiB, 2_MiB, 20_MiB};
constexpr std::size_t capacities[] = {48_MiB, 96_MiB, 256_MiB, 4_GiB};

TEST(paddle_virtual_memory, decides_as_the_model_in_random_programs) {
  coverage covered;
  for (std::uint64_t seed = 0; seed < programs && !HasFatalFailure(); ++seed) {
    paddle_settings settings = v1(small_sizes[seed % 4]);
    settings.multi_scale = seed / 16 % 2 == 0;
    compare_with_model<first_version>(seed, settings, capacities[seed / 4 % 4], false, covered);
  }
  EXPECT_GT(covered.refused, programs);
}

TEST(paddle_virtual_memory_v2, decides_as_the_model_in_random_programs) {
  constexpr std::size_t handles[] = {2_MiB, 4_MiB, 16_MiB};
  coverage covered;
  for (std::uint64_t seed = 0; seed < programs && !HasFatalFailure(); ++seed) {
    const paddle_settings settings = v2(small_sizes[seed % 4], handles[seed / 16 % 3], seed / 48 % 4 != 0);
    compare_with_model<second_version>(seed, settings, capacities[seed / 4 % 4], seed / 192 % 2 == 0,
                                       covered);
  }
  EXPECT_GT(covered.refused, programs);
  EXPECT_GT(covered.holes, programs);
  EXPECT_GT(covered.moved_to_end, programs / 6);
  EXPECT_GT(covered.moved_to_hole, programs / 200);
}

}  // namespace
