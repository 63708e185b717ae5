// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <tuple>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/plan/memory_plan.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/trace/csv.hpp>
#include <tessera/trace/recording.hpp>
#include "tessera_replay/files.hpp"
#include "tessera_replay/log_map.hpp"
#include "tessera_replay/memory_map.hpp"
#include "tessera_replay/run_log.hpp"

#include "tool_recipe.hpp"

namespace {

using namespace tessera;
using namespace tessera::trace;
using namespace replay;
using replay_tests::tool_recipe;
using kind = event::kind;
using use = memory_map::use;

logged_run log_of(const char* recipe, const program& source) {
  return log_replay(source, 1 << 20, tool_recipe(recipe), simulated_device{});
}

TEST(run_log, has_blocks_and_segments_with_the_events_between_which_they_exist) {
  const recording made{"",
                       {{kind::answer_events, 0, 0},
                        {kind::allocate, 7, 12_MiB},
                        {kind::allocate, 8, 1000, stream_id{3}},
                        {kind::record_stream, 7, 0, stream_id{1}},
                        {kind::free, 7},
                        {kind::answer_events, 0, 1},
                        {kind::allocate, 9, 5_MiB},
                        {kind::free, 8},
                        {kind::empty_cache}}};
  const logged_run found = log_of("pytorch", program(made));
  ASSERT_EQ(found.log.blocks.size(), 3u);
  EXPECT_EQ(found.log.blocks[0].bytes, 12_MiB);
  EXPECT_EQ(found.log.blocks[0].live_to, 4u);
  EXPECT_EQ(found.log.blocks[0].to, 6u) << "a later allocation asks whether the event has completed";
  EXPECT_EQ(found.log.blocks[1].bytes, 1024u);
  EXPECT_EQ(found.log.blocks[1].to, 7u);
  EXPECT_EQ(found.log.blocks[2].to, run_log::never);
  ASSERT_EQ(found.log.segments.size(), 2u);
  EXPECT_EQ(found.log.segments[0].bytes, 12_MiB);
  EXPECT_EQ(found.log.segments[0].from, 1u);
  EXPECT_EQ(found.log.segments[0].to, run_log::never) << "the last block lies in it";
  EXPECT_EQ(found.log.segments[1].bytes, 2_MiB);
  EXPECT_EQ(found.log.segments[1].stream, 3u);
  EXPECT_EQ(found.log.segments[1].from, 2u);
  EXPECT_EQ(found.log.segments[1].to, 8u);
  EXPECT_EQ(found.failures, 0u);
}

TEST(run_log, splits_what_is_released_in_part) {
  run_recorder recorder(1);
  recorder.begin(0, 0);
  recorder.acquire({100, 60});
  recorder.begin(1, 0);
  recorder.release(120, 20);
  recorder.begin(2, 0);
  recorder.release(90, 35);  // the first part, and addresses that nothing has
  const run_log log = std::move(recorder).finish();
  std::vector<std::tuple<std::uint64_t, std::size_t, std::uint32_t, std::uint32_t>> all;
  for (const run_log::segment& s : log.segments) all.emplace_back(s.address, s.bytes, s.from, s.to);
  const std::vector<std::tuple<std::uint64_t, std::size_t, std::uint32_t, std::uint32_t>> expected{
      {100, 60, 0, 1}, {100, 20, 1, 2}, {140, 20, 1, run_log::never}};
  EXPECT_EQ(all, expected);
}

TEST(run_log, notes_a_failure_and_a_block_without_address) {
  const recording made{"", {{kind::allocate, 0, 30_MiB}, {kind::allocate, 1, 31_MiB}, {kind::free, 1}}};
  const program source(made);
  const logged_run found = log_replay(source, 8, tool_recipe("pytorch"),
                                      simulated_device{simulated_device::options{.capacity = 60_MiB}});
  EXPECT_EQ(found.failures, 1u);
  EXPECT_EQ(found.first_failure, 1u);
  EXPECT_EQ(found.log.blocks[1].address, 0u);
  EXPECT_NE(found.log.blocks[0].address, 0u);
}

recording trace_of(const std::string& name) {
  const auto text = replay::read_file(std::string(TESSERA_EXAMPLES_DIR) + "/traces/" + name + ".csv");
  return std::get<recording>(tessera::trace::read_csv(std::get<std::string>(text), name));
}

// The sums of the log are those of the allocator after each event, and its map is that of a replay.
void compare_with_the_allocator(const char* recipe, const program& source) {
  const logged_run found = log_of(recipe, source);
  const timeline sums = timeline_of(found.log, source, 1 << 20);
  ASSERT_EQ(sums.events(), found.over.events());
  for (std::size_t i = 0; i < sums.events(); ++i) {
    const timeline::bucket &expected = found.over.buckets()[i], &got = sums.buckets()[i];
    ASSERT_EQ(got.reserved, expected.reserved) << "after event " << i;
    ASSERT_EQ(got.live, expected.live) << "after event " << i;
    ASSERT_EQ(got.pending, expected.pending) << "after event " << i;
    ASSERT_EQ(got.requested, expected.requested) << "after event " << i;
    ASSERT_EQ(got.asleep, expected.asleep) << "after event " << i;
  }
  for (const std::size_t at : {std::size_t{0}, sums.events() / 40, sums.worst_event(), sums.events() - 1}) {
    SCOPED_TRACE(at);
    const memory_map mine = map_at(found.log, source, at);
    const memory_map expected = map_after(source, at, simulated_device{}, tool_recipe(recipe));
    EXPECT_EQ(mine.sums.reserved, expected.sums.reserved);
    EXPECT_EQ(mine.sums.live, expected.sums.live);
    EXPECT_EQ(mine.sums.pending, expected.sums.pending);
    EXPECT_EQ(mine.sums.asleep, expected.sums.asleep);
    // The other map waits for pending blocks, so these keep nothing there.
    if (mine.sums.pending == 0) {
      EXPECT_EQ(mine.sums.non_releasable, expected.sums.non_releasable);
    }
    EXPECT_EQ(mine.sums.live_blocks, expected.sums.live_blocks);
    std::vector<std::tuple<use, std::size_t, std::size_t>> cells, all;
    for (const memory_map::cell& c : mine.cells)
      if (c.requested != 0) cells.emplace_back(c.is, c.bytes, c.event);
    for (const memory_map::cell& c : expected.cells)
      if (c.requested != 0) all.emplace_back(c.is, c.bytes, c.event);
    std::sort(cells.begin(), cells.end());
    std::sort(all.begin(), all.end());
    EXPECT_EQ(cells, all);
  }
}

TEST(run_log, agrees_with_the_allocator_on_recorded_programs) {
  const recording made = trace_of("gnn_sage_streams");
  const program source(made);
  compare_with_the_allocator("pytorch", source);
  compare_with_the_allocator("pytorch_expandable", source);
  compare_with_the_allocator("stitched", source);
  compare_with_the_allocator("passthrough", source);
}

TEST(run_log, agrees_with_the_allocator_on_private_pools_that_sleep) {
  const recording made{"",
                       {{kind::begin_pool, 7, 1},
                        {kind::allocate, 0, 12_MiB},
                        {kind::allocate, 1, 6_MiB},
                        {kind::end_pool, 7},
                        {kind::begin_pool, 3, 1},
                        {kind::allocate, 2, 15_MiB},
                        {kind::end_pool, 3},
                        {kind::sleep, 7},
                        {kind::allocate, 3, 5_MiB},
                        {kind::free, 1},
                        {kind::wake, 7}}};
  const program source(made);
  compare_with_the_allocator("pytorch", source);
  compare_with_the_allocator("pytorch_expandable", source);
  std::vector<std::uint64_t> pools;
  for (const run_log::segment& s : log_of("pytorch", source).log.segments) pools.push_back(s.private_pool);
  EXPECT_EQ(pools, (std::vector<std::uint64_t>{7, 7, 3, 0})) << "numbered as in the recording";
}

// The blocks of a plan report no events.
TEST(run_log, has_the_memory_of_a_plan) {
  static constexpr plan::memory_plan::kind kinds[] = {{5_MiB}};
  static constexpr plan::memory_plan::track tracks[] = {{.kinds_end = 1, .entries_end = 1}};
  static constexpr plan::memory_plan::entry entries[] = {{}};
  constexpr plan::memory_plan numbers{
      .bytes = 5_MiB, .peak_live = 5_MiB, .kinds = kinds, .tracks = tracks, .entries = entries};
  const recording made{"", {{kind::allocate, 0, 5_MiB}, {kind::allocate, 1, 3_MiB}, {kind::free, 0}}};
  const program source(made);
  const logged_run found = log_replay(source, 8, tool_recipe("pytorch"), simulated_device{}, &numbers);
  const timeline sums = timeline_of(found.log, source, 8);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(sums.buckets()[i].reserved, found.over.buckets()[i].reserved) << i;
    EXPECT_EQ(sums.buckets()[i].live, found.over.buckets()[i].live) << i;
  }
  EXPECT_EQ(found.log.blocks[0].to, 2u);
  EXPECT_EQ(found.log.blocks[1].to, run_log::never);
  EXPECT_NE(found.log.blocks[1].address, 0u);
}

}  // namespace
