// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/observe/inspect.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/recipe/paddle.hpp>
#include <tessera/recipe/passthrough.hpp>
#include <tessera/recipe/power_of_two.hpp>
#include <tessera/recipe/stitched.hpp>
#include <tessera/tessera.hpp>
#include <tessera/trace/csv.hpp>
#include <tessera/trace/recording.hpp>
#include "tessera_replay/files.hpp"
#include "tessera_replay/memory_map.hpp"
#include "tessera_replay/replayed.hpp"

#include "tool_recipe.hpp"

namespace {

using namespace tessera;
using namespace tessera::trace;
using namespace replay;
using replay_tests::tool_recipe;
using kind = event::kind;
using use = memory_map::use;

struct cell {
  use is;
  std::size_t bytes, requested, event;
  bool operator==(const cell&) const = default;
};
std::vector<cell> cells(const memory_map& map) {
  std::vector<cell> all;
  for (const memory_map::cell& c : map.cells) all.push_back({c.is, c.bytes, c.requested, c.event});
  return all;
}
memory_map map_of(const char* recipe, const std::vector<event>& events, std::size_t at) {
  const recording made{"", events};
  return map_after(program(made), at, simulated_device{}, tool_recipe(recipe));
}

TEST(memory_map, distinguishes_non_releasable_from_releasable) {
  const memory_map map = map_of("pytorch",
                                {{kind::allocate, 0, 12_MiB},
                                 {kind::allocate, 1, 8_MiB},
                                 {kind::allocate, 2, 30_MiB, stream_id{1}},
                                 {kind::free, 0},
                                 {kind::free, 2},
                                 {kind::free, 1}},
                                4);
  ASSERT_EQ(map.segments.size(), 3u);
  EXPECT_EQ(map.segments[0].bytes, 12_MiB);  // a segment of its own
  EXPECT_EQ(map.segments[0].live_blocks, 0u);
  EXPECT_EQ(map.segments[1].bytes, 20_MiB);
  EXPECT_EQ(map.segments[1].live_blocks, 1u);
  EXPECT_EQ(map.segments[1].non_releasable, 12_MiB);
  EXPECT_EQ(map.segments[2].stream, stream_id{1});
  EXPECT_EQ(map.segments[2].non_releasable, 0u);
  const std::vector<cell> expected{{use::releasable, 12_MiB, 0, 0},
                                   {use::live, 8_MiB, 8_MiB, 1},
                                   {use::non_releasable, 12_MiB, 0, 0},
                                   {use::releasable, 30_MiB, 0, 0}};
  EXPECT_EQ(cells(map), expected);
  EXPECT_EQ(map.sums.reserved, 62_MiB);
  EXPECT_EQ(map.sums.live, 8_MiB);
  EXPECT_EQ(map.sums.non_releasable, 12_MiB);
  EXPECT_EQ(map.sums.releasable, 42_MiB);
  EXPECT_EQ(map.sums.live_blocks, 1u);
  EXPECT_EQ(map.sums.keeping_blocks, 1u);
  EXPECT_EQ(map.largest_free, 12_MiB);  // before the event
}

// In a range, whole pages of a free block could be released. The rest shares pages with its neighbours.
TEST(memory_map, splits_free_blocks_at_releasable_pages) {
  const memory_map map = map_of("pytorch_expandable",
                                {{kind::allocate, 0, 10_MiB},
                                 {kind::allocate, 1, 50_MiB},
                                 {kind::allocate, 2, 10_MiB},
                                 {kind::free, 1}},
                                3);
  ASSERT_EQ(map.segments.size(), 1u);
  EXPECT_TRUE(map.segments[0].in_range);
  const std::vector<cell> expected{{use::live, 10_MiB, 10_MiB, 0},
                                   {use::non_releasable, 10_MiB, 0, 0},
                                   {use::releasable, 40_MiB, 0, 0},
                                   {use::live, 10_MiB, 10_MiB, 2},
                                   {use::non_releasable, 10_MiB, 0, 0}};
  EXPECT_EQ(cells(map), expected);
  EXPECT_EQ(map.sums.keeping_blocks, 2u);
}

TEST(memory_map, shows_pending_blocks) {
  const memory_map map = map_of("pytorch",
                                {{kind::answer_events, 0, 0},
                                 {kind::allocate, 7, 1000},
                                 {kind::allocate, 8, 3_MiB},
                                 {kind::record_stream, 8, 0, stream_id{1}},
                                 {kind::free, 8}},
                                4);
  const std::vector<cell> expected{{use::live, 1024, 1000, 1},
                                   {use::non_releasable, 2_MiB - 1024, 0, 0},
                                   {use::pending, 3_MiB, 3_MiB, 2},
                                   {use::releasable, 17_MiB, 0, 0}};
  EXPECT_EQ(cells(map), expected);
  EXPECT_EQ(map.sums.pending, 3_MiB);
  EXPECT_EQ(map.segments[1].live_blocks, 0u);
}

// Pool 7 sleeps when pool 3 has the peak. Its free block keeps its address, since a live one shares its pages.
const std::vector<event> two_pools{{kind::begin_pool, 7, 1},   {kind::allocate, 0, 12_MiB},
                                   {kind::allocate, 1, 6_MiB}, {kind::end_pool, 7},
                                   {kind::begin_pool, 3, 1},   {kind::allocate, 2, 15_MiB},
                                   {kind::end_pool, 3},        {kind::sleep, 7},
                                   {kind::allocate, 3, 5_MiB}, {kind::free, 1}};

TEST(memory_map, shows_private_pools_and_what_sleeps) {
  memory_map map = map_of("pytorch_expandable", two_pools, two_pools.size() - 1);
  ASSERT_EQ(map.segments.size(), 3u);
  std::vector<std::uint64_t> pools;
  std::vector<bool> asleep;
  for (const memory_map::segment& s : map.segments) {
    pools.push_back(s.private_pool);
    asleep.push_back(s.is_unbacked);
  }
  EXPECT_EQ(pools, (std::vector<std::uint64_t>{0, 7, 3})) << "the pools in the order of their making";
  EXPECT_EQ(asleep, (std::vector<bool>{false, true, false}));
  const std::vector<cell> expected{{use::live, 5_MiB, 5_MiB, 8},     {use::non_releasable, 15_MiB, 0, 0},
                                   {use::asleep, 12_MiB, 12_MiB, 1}, {use::asleep, 8_MiB, 0, 0},
                                   {use::live, 15_MiB, 15_MiB, 5},   {use::non_releasable, 5_MiB, 0, 0}};
  EXPECT_EQ(cells(map), expected);
  EXPECT_EQ(map.sums.reserved, 40_MiB);
  EXPECT_EQ(map.sums.live, 20_MiB);
  EXPECT_EQ(map.sums.asleep, 20_MiB);
  EXPECT_EQ(map.sums.live_blocks, 2u);
  map.coarsen(3);
  ASSERT_EQ(map.cells.size(), 3u);
  EXPECT_EQ(map.cells[1].is, use::asleep) << "cells that sleep join no others";
  EXPECT_EQ(map.cells[1].blocks, 2u);
  EXPECT_EQ(map.cells[1].live, 0u);
}

TEST(memory_map, of_segments_shows_private_pools_awake) {
  const memory_map map = map_of("pytorch", two_pools, two_pools.size() - 1);
  std::vector<std::uint64_t> pools;
  for (const memory_map::segment& s : map.segments) {
    pools.push_back(s.private_pool);
    EXPECT_FALSE(s.is_unbacked);
  }
  EXPECT_EQ(pools, (std::vector<std::uint64_t>{0, 7, 7, 3}));
  EXPECT_EQ(map.sums.asleep, 0u);
}

// On a recorded program: the map covers all reserved memory, its non-releasable bytes are those of
// inspect.hpp, and coarser maps have the same sums.
template <typename Recipe>
void compare_with_the_allocator(const char* recipe, const program& source, std::size_t at) {
  const auto& events = source.events();
  const recording until{"", {events.begin(), events.begin() + static_cast<std::ptrdiff_t>(at) + 1}};
  replayed<Recipe> pool;
  tessera::trace::replay(program(until), pool);
  const usage now = pool.current_usage();
  memory_map map = map_after(source, at, simulated_device{}, tool_recipe(recipe));
  EXPECT_EQ(map.sums.reserved, now.reserved);
  EXPECT_EQ(map.sums.live, now.allocated);
  EXPECT_EQ(map.sums.pending, now.pending());
  EXPECT_EQ(map.sums.non_releasable + map.sums.releasable, now.cached);
  if (now.pending() == 0) {
    EXPECT_EQ(map.sums.non_releasable, tessera::detail::non_releasable_bytes(pool));
  }
  for (const std::size_t most : {1000u, 100u, 10u, 1u}) {
    map.coarsen(most);
    ASSERT_LE(map.cells.size(), most);
    std::size_t bytes = 0, live = 0, non_releasable = 0, segment = 0;
    for (const memory_map::cell& c : map.cells) {
      bytes += c.bytes;
      live += c.live;
      non_releasable += c.non_releasable;
      ASSERT_GE(c.segment, segment);
      segment = c.segment;
    }
    EXPECT_EQ(bytes, now.reserved);
    EXPECT_EQ(live, now.allocated + now.pending());
    EXPECT_EQ(non_releasable, map.sums.non_releasable);
  }
}

TEST(memory_map, agrees_with_the_allocator_on_a_recorded_program) {
  for (const char* const name : {"gnn_sage", "gnn_sage_streams"}) {
    const auto text = replay::read_file(std::string(TESSERA_EXAMPLES_DIR) + "/traces/" + name + ".csv");
    const auto read = tessera::trace::read_csv(std::get<std::string>(text), name);
    const program source(std::get<recording>(read));
    for (const std::size_t at : {0u, 777u, 30929u}) {
      SCOPED_TRACE(std::string(name) + " after event " + std::to_string(at));
      compare_with_the_allocator<pytorch<>>("pytorch", source, at);
      compare_with_the_allocator<pytorch_family::expandable>("pytorch_expandable", source, at);
      compare_with_the_allocator<stitched>("stitched", source, at);
      compare_with_the_allocator<power_of_two>("power_of_two", source, at);
      compare_with_the_allocator<passthrough>("passthrough", source, at);
      compare_with_the_allocator<paddle_family::auto_growth>("paddle", source, at);
    }
  }
}

TEST(memory_map, joins_small_neighbours_first) {
  std::vector<event> events;
  for (std::uint64_t id = 0; id < 100; ++id) events.push_back({kind::allocate, id, 512});
  events.push_back({kind::allocate, 100, 8_MiB});
  events.push_back({kind::free, 50});
  memory_map map = map_of("pytorch", events, events.size() - 1);
  ASSERT_EQ(map.cells.size(), 103u);  // a free block lies after the small ones and the large one
  map.coarsen(103);
  EXPECT_EQ(map.cells.size(), 103u);
  map.coarsen(60);
  ASSERT_LE(map.cells.size(), 60u);
  EXPECT_EQ(map.cells[0].is, use::several);
  EXPECT_EQ(map.cells.back().is, use::non_releasable);
  EXPECT_EQ(map.cells[map.cells.size() - 2].is, use::live);
  map.coarsen(1);
  ASSERT_EQ(map.cells.size(), 1u);
  EXPECT_EQ(map.cells[0].blocks, 103u);
  EXPECT_EQ(map.cells[0].live, 99 * 512 + 8_MiB);
  EXPECT_EQ(map.cells[0].non_releasable, 512 + (2_MiB - 100 * 512) + 12_MiB);
}

TEST(memory_map, shows_the_largest_free_block_before_a_failure) {
  const recording made{"",
                       {{kind::allocate, 0, 30_MiB},
                        {kind::allocate, 1, 30_MiB},
                        {kind::free, 0},
                        {kind::allocate, 2, 31_MiB}}};
  simulated_device small{simulated_device::options{.capacity = 60_MiB}};
  const memory_map map = map_after(program(made), 3, std::move(small), tool_recipe("pytorch"));
  EXPECT_EQ(map.largest_free, 30_MiB);
  EXPECT_EQ(map.sums.reserved, 30_MiB);  // the free segment was released, which was not enough
  EXPECT_EQ(map.sums.non_releasable, 0u);
}

}  // namespace
