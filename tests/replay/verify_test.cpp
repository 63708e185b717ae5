// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/core/bytes.hpp>
#include <tessera/core/types.hpp>
#include <tessera/observe/snapshot.hpp>
#include <tessera/recipe/pytorch_family.hpp>
#include <tessera/trace/recording.hpp>
#include "tessera_replay/start_state.hpp"
#include "tessera_replay/verify.hpp"

namespace {

using namespace tessera;
using namespace tessera::trace;
using namespace replay;
using action = snapshot::action;
using state = snapshot::block::state;

constexpr std::uint64_t small_range = std::uint64_t{1} << 40;
constexpr std::uint64_t large_range = std::uint64_t{1} << 41;

/// A part of a segment at the end: a live block, or a free one if nothing was requested.
struct part {
  std::size_t size;
  std::size_t requested;
};
snapshot::segment segment_at(std::uint64_t address, bool large, bool expandable, std::vector<part> parts) {
  snapshot::segment made{.address = address, .large = large, .expandable = expandable};
  for (const part& p : parts) {
    made.blocks.push_back(
        {address + made.size, p.size, p.requested, p.requested != 0 ? state::live : state::free});
    made.size += p.size;
  }
  return made;
}
snapshot::entry entry(action what, std::uint64_t address, std::size_t size) {
  snapshot::entry made;
  made.what = what;
  made.address = address;
  made.size = size;
  return made;
}
snapshot recorded(std::vector<snapshot::segment> segments, std::vector<snapshot::entry> entries) {
  snapshot made;
  made.name = "file";
  made.segments = std::move(segments);
  made.traces = {std::move(entries)};
  made.configured.expandable_segments = !made.segments.empty() && made.segments[0].expandable;
  return made;
}

verification verified(const snapshot& source) {
  const auto found = verifier(source, 0).run();
  if (const auto* wrong = std::get_if<input_error>(&found)) {
    ADD_FAILURE() << wrong->text();
    return {};
  }
  return std::get<verification>(found);
}
std::string refused(const snapshot& source) {
  const auto found = verifier(source, 0).run();
  const auto* const wrong = std::get_if<input_error>(&found);
  return wrong != nullptr ? wrong->text() : "accepted";
}

TEST(verify, follows_the_pages_of_expandable_segments) {
  const snapshot source =
      recorded({segment_at(small_range, false, true, {{512, 7}, {2_MiB - 512, 0}}),
                segment_at(large_range, true, true, {{5_MiB, 5_MiB}, {40_MiB, 40_MiB}, {15_MiB, 0}})},
               {entry(action::segment_map, small_range, 2_MiB), entry(action::alloc, small_range, 7),
                entry(action::segment_map, large_range, 20_MiB), entry(action::alloc, large_range, 5_MiB),
                entry(action::segment_map, large_range + 20_MiB, 40_MiB),
                entry(action::alloc, large_range + 5_MiB, 40_MiB)});
  const verification found = verified(source);
  EXPECT_TRUE(found.agrees()) << found.first_other_segment;
  EXPECT_TRUE(found.has_compared());
  EXPECT_EQ(found.same_address, 3u);
  EXPECT_EQ(found.maps, 3u);
  EXPECT_EQ(found.peak_recorded, 62_MiB);
  EXPECT_EQ(found.peak_here, 62_MiB);
}

// Two free segments have the same size. The older one has the higher address.
TEST(verify, finds_the_release_whose_rules_match) {
  const std::uint64_t older = large_range + 40_MiB;
  const std::uint64_t newer = large_range;
  const auto serving = [&](std::uint64_t serves) {
    const auto end = [&](std::uint64_t at) {
      return segment_at(at, true, false, {{20_MiB, at == serves ? 20_MiB : 0}});
    };
    return verified(
        recorded({end(newer), end(older)},
                 {entry(action::segment_alloc, older, 20_MiB), entry(action::alloc, older, 20_MiB),
                  entry(action::segment_alloc, newer, 20_MiB), entry(action::alloc, newer, 20_MiB),
                  entry(action::free_completed, older, 20_MiB), entry(action::free_completed, newer, 20_MiB),
                  entry(action::alloc, serves, 20_MiB)}));
  };
  const verification by_address = serving(newer);
  EXPECT_TRUE(by_address.agrees()) << by_address.first_other_segment;
  EXPECT_STREQ(by_address.rules, "2.6");
  const verification by_age = serving(older);
  EXPECT_TRUE(by_age.agrees()) << by_age.first_other_segment;
  EXPECT_STREQ(by_age.rules, "2.14");
}

TEST(verify, begins_with_mapped_memory) {
  // At the start [0, 20) and [40, 60) MiB are mapped. The hole is then mapped, and the upper part unmapped.
  const snapshot source =
      recorded({segment_at(large_range, true, true, {{15_MiB, 15_MiB}, {20_MiB, 20_MiB}, {5_MiB, 0}})},
               {entry(action::free_completed, large_range + 41_MiB, 3_MiB),
                entry(action::segment_unmap, large_range + 40_MiB, 20_MiB),
                entry(action::segment_map, large_range + 20_MiB, 20_MiB),
                entry(action::alloc, large_range + 15_MiB, 20_MiB)});
  const verification found = verified(source);
  EXPECT_TRUE(found.agrees()) << found.first_other_segment;
  EXPECT_EQ(found.peak_recorded, 40_MiB);
  EXPECT_EQ(found.cached_at_start, 22_MiB);
  EXPECT_EQ(found.calls.map, 1u);
  EXPECT_EQ(found.calls.unmap, 1u);
}

TEST(verify, reports_pages_mapped_elsewhere) {
  const verification more = verified(
      recorded({segment_at(large_range, true, true, {{5_MiB, 5_MiB}, {35_MiB, 0}})},
               {entry(action::segment_map, large_range, 40_MiB), entry(action::alloc, large_range, 5_MiB)}));
  EXPECT_FALSE(more.agrees());
  EXPECT_EQ(more.same_address, 1u);
  EXPECT_EQ(more.first_other_segment, "before allocation 0 the mapped pages differ from " +
                                          std::to_string(large_range + 20_MiB) + " on");
  const verification kept = verified(recorded({segment_at(large_range, true, true, {{20_MiB, 20_MiB}})},
                                              {entry(action::free_completed, large_range + 20_MiB, 20_MiB),
                                               entry(action::free_completed, large_range + 40_MiB, 1_MiB + 1),
                                               entry(action::segment_unmap, large_range + 20_MiB, 40_MiB)}));
  EXPECT_TRUE(kept.agrees()) << kept.first_other_segment;
}

TEST(verify, repeats_a_failed_request_that_mapped_some_pages) {
  // Pages are missing below and above a free page. The device filled the lower hole and had no more. So idle
  // memory was released, which did not help either.
  const snapshot source =
      recorded({segment_at(large_range, true, true, {{20_MiB, 20_MiB}})},
               {entry(action::segment_map, large_range + 20_MiB, 20_MiB),
                entry(action::segment_unmap, large_range + 20_MiB, 40_MiB), entry(action::oom, 0, 70_MiB)});
  const verification found = verified(source);
  EXPECT_TRUE(found.agrees()) << found.first_other_segment;
  EXPECT_EQ(found.peak_recorded, 60_MiB);
  EXPECT_EQ(found.peak_here, 60_MiB);
  EXPECT_EQ(found.calls.map, 1u);
  EXPECT_EQ(found.calls.unmap, 2u);
}

TEST(verify, infers_the_range_size_if_decisions_depend_on_it) {
  // Two free blocks would serve. A block with less room to grow is preferred, so the hole at the range's end
  // is the smaller one.
  const snapshot source =
      recorded({segment_at(large_range, true, true, {{8_MiB, 8_MiB}, {12_MiB, 0}}),
                segment_at(large_range + 60_MiB, true, true, {{5_MiB, 5_MiB}, {10_MiB, 10_MiB}, {5_MiB, 0}})},
               {entry(action::alloc, large_range + 65_MiB, 10_MiB)});
  const verification found = verified(source);
  EXPECT_TRUE(found.agrees());
  EXPECT_EQ(found.same_address, 1u);
  const auto endless = recorded_replay(source, 0, settings_of(source), unlimited).run();
  EXPECT_EQ(std::get<verification>(endless).same_address, 0u);
  EXPECT_EQ(std::get<verification>(endless).range_limit, 100_MiB);
}

// A range for 100 MiB was reserved, and its first pages were refused. It lies lower and serves the next growth.
TEST(verify, finds_a_range_that_was_reserved_for_a_failed_request) {
  const std::uint64_t lower = large_range - 180_MiB;
  const snapshot source =
      recorded({segment_at(lower, true, true, {{15_MiB, 15_MiB}, {5_MiB, 0}}),
                segment_at(large_range, true, true, {{20_MiB, 20_MiB}})},
               {entry(action::segment_map, large_range, 20_MiB), entry(action::alloc, large_range, 20_MiB),
                entry(action::oom, 0, 100_MiB), entry(action::segment_map, lower, 20_MiB),
                entry(action::alloc, lower, 15_MiB)});
  const verification found = verified(source);
  EXPECT_TRUE(found.agrees()) << found.first_other_segment;
  EXPECT_EQ(found.same_address, 2u);
}

TEST(verify, limits_ranges_by_the_ranges_above) {
  // The hole at the end of the range holds 20 MiB, as the next range begins at 80 MiB. So the free block there is
  // preferred to one of 45 MiB.
  const std::uint64_t next = large_range + 80_MiB;
  snapshot source = recorded(
      {segment_at(large_range, true, true, {{45_MiB, 0}, {3_MiB, 3_MiB}, {10_MiB, 10_MiB}, {2_MiB, 0}}),
       segment_at(next, true, true, {{20_MiB, 20_MiB}})},
      {entry(action::alloc, large_range + 48_MiB, 10_MiB)});
  source.segments[1].stream = stream_id{1};
  const verification found = verified(source);
  EXPECT_TRUE(found.agrees()) << found.first_other_segment;
  const auto guesses = [&source] {
    return recorded_replay(source, 0, settings_of(source), unlimited).guess_range_sizes();
  };
  EXPECT_EQ(guesses(), std::vector<std::size_t>{80_MiB});
  // When a request failed, the device had 80 MiB, of which 60 + 20 were mapped. PyTorch reserves an eighth more.
  source.traces[0].push_back(entry(action::oom, 0, 30_MiB));
  EXPECT_EQ(guesses(), (std::vector<std::size_t>{90_MiB, 80_MiB}));
}

// A request found no free block. The allocator then waited for a stream, which freed one, and tried to grow again.
TEST(verify, does_not_search_again_after_recovery) {
  for (const bool expandable : {true, false}) {
    const std::uint64_t other = large_range + 60_MiB;
    const auto grows = expandable ? action::segment_map : action::segment_alloc;
    const auto shrinks = expandable ? action::segment_unmap : action::segment_free;
    const std::uint64_t fresh = expandable ? large_range + 20_MiB : other;
    std::vector<snapshot::segment> end;
    if (expandable) {
      end = {
          segment_at(large_range, true, true, {{15_MiB, 0}, {5_MiB, 5_MiB}, {12_MiB, 12_MiB}, {8_MiB, 0}})};
    } else {
      end = {segment_at(large_range, true, false, {{15_MiB, 0}, {5_MiB, 5_MiB}}),
             segment_at(other, true, false, {{12_MiB, 12_MiB}})};
    }
    const std::size_t taken = expandable ? 20_MiB : 12_MiB;
    const verification found =
        verified(recorded(end, {entry(action::free_requested, large_range, 15_MiB),
                                entry(action::alloc, large_range + 15_MiB, 5_MiB),
                                entry(action::free_completed, large_range, 15_MiB),
                                entry(shrinks, large_range + 200_MiB, 20_MiB), entry(grows, fresh, taken),
                                entry(action::alloc, fresh, 12_MiB)}));
    EXPECT_TRUE(found.agrees()) << found.first_other_segment << expandable;
    EXPECT_EQ(found.same_address, 2u);
  }
}

// After an emptied cache, a request searches and finds the best fit. After recovery it takes the lowest free block
// beside a hole. The history is the same.
TEST(verify, tells_recovery_from_an_emptied_cache_by_the_address) {
  const auto served = [](bool lowest, bool released) {
    using parts = std::vector<part>;
    const parts low =
        lowest ? parts{{5_MiB, 5_MiB}, {6_MiB, 6_MiB}, {9_MiB, 0}} : parts{{5_MiB, 5_MiB}, {15_MiB, 0}};
    const parts high =
        lowest ? parts{{7_MiB, 0}, {13_MiB, 13_MiB}} : parts{{6_MiB, 6_MiB}, {1_MiB, 0}, {13_MiB, 13_MiB}};
    std::vector<snapshot::entry> entries;
    if (released) entries.push_back(entry(action::segment_unmap, large_range + 20_MiB, 20_MiB));
    entries.push_back(entry(action::alloc, large_range + (lowest ? 5_MiB : 40_MiB), 6_MiB));
    return verified(recorded(
        {segment_at(large_range, true, true, low), segment_at(large_range + 40_MiB, true, true, high)},
        std::move(entries)));
  };
  EXPECT_TRUE(served(false, true).agrees());
  EXPECT_TRUE(served(true, true).agrees());
  EXPECT_TRUE(served(false, false).agrees());
  EXPECT_FALSE(served(true, false).agrees()) << "no recovery is recorded";
}

TEST(verify, refuses_recordings_of_the_drivers_pools_and_impossible_pages) {
  snapshot source = recorded({}, {entry(action::snapshot, 0, 0)});
  source.configured.conf = "backend:cudaMallocAsync";
  EXPECT_EQ(
      refused(source),
      "file: device 0: was recorded under backend:cudaMallocAsync, where the driver decides, not PyTorch");
  EXPECT_EQ(refused(recorded({segment_at(large_range, true, true, {{512, 0}})}, {})),
            "file: device 0: 512 bytes at 2199023255552 are not whole steps of 4096 bytes");
  EXPECT_EQ(refused(recorded({segment_at(large_range, true, true, {{1024_GiB, 0}})}, {})),
            "file: device 0: more than 262144 pages are mapped");
  EXPECT_EQ(refused(recorded({segment_at(large_range, true, true, {{1024_GiB, 1024_GiB}})},
                             {entry(action::segment_map, large_range, 1024_GiB),
                              entry(action::alloc, large_range, 1024_GiB)})),
            "file: device 0: more than 262144 pages are mapped");
}

TEST(verify, names_a_recipe_other_than_PyTorchs) {
  // PyTorch acquires a segment of 20 MiB for a request of 5.
  snapshot source =
      recorded({segment_at(large_range, true, false, {{5_MiB, 5_MiB}})},
               {entry(action::segment_alloc, large_range, 5_MiB), entry(action::alloc, large_range, 5_MiB)});
  EXPECT_FALSE(verified(source).agrees());
  source.configured.recipe = "tessera::pytorch_native";
  EXPECT_FALSE(verified(source).agrees());
  source.configured.recipe = "my::own\n";
  EXPECT_EQ(refused(source), "file: device 0: was captured from 'my::own?', not from PyTorch");
  source = recorded({}, {entry(action::snapshot, 0, 0)});
  source.configured.recipe = "my::own";
  EXPECT_FALSE(verified(source).has_compared());
}

TEST(verify, maps_no_more_than_recorded) {
  // Otherwise a file of a few bytes could demand as many pages here as it claims.
  const verification found = verified(recorded(
      {segment_at(large_range, true, true, {{20_MiB, 20_MiB}})},
      {entry(action::segment_map, large_range, 20_MiB), entry(action::alloc, large_range, max_request)}));
  EXPECT_FALSE(found.agrees());
  EXPECT_EQ(found.peak_here, 0u);
}

TEST(verify, has_nothing_to_compare_without_a_history) {
  EXPECT_FALSE(verified(recorded({segment_at(large_range, true, false, {{20_MiB, 0}})}, {})).has_compared());
}

TEST(start_state, infers_sizes_from_allocations_after_live_blocks) {
  // A block of 11 MiB served 10.5 MiB whole. The rest of its segment was split off and is free.
  const auto blocks_with = [](std::vector<snapshot::entry> entries) {
    auto found =
        start_finder(recorded({segment_at(large_range, true, false, {{30_MiB, 0}})}, std::move(entries)), 0)
            .find(policies<pytorch_family::native>{});
    return std::get<start_state>(std::move(found)).segments[0].blocks;
  };
  const std::size_t asked = 10_MiB + 512_KiB;
  const auto known = blocks_with({entry(action::alloc, large_range + 11_MiB, 2_MiB),
                                  entry(action::free_completed, large_range, asked),
                                  entry(action::free_completed, large_range + 11_MiB, 2_MiB)});
  ASSERT_EQ(known.size(), 2u);
  EXPECT_EQ(known[0].size, 11_MiB);
  EXPECT_EQ(known[1].size, 19_MiB);
  // If the rest were larger, PyTorch would have split it off. So another live block was there.
  const auto far = blocks_with({entry(action::alloc, large_range + 13_MiB, 2_MiB),
                                entry(action::free_completed, large_range, asked),
                                entry(action::free_completed, large_range + 13_MiB, 2_MiB)});
  EXPECT_EQ(far[0].size, asked);
  // Later use of the memory shows nothing about the block.
  const auto late = blocks_with({entry(action::free_completed, large_range, asked),
                                 entry(action::alloc, large_range + 11_MiB, 2_MiB),
                                 entry(action::free_completed, large_range + 11_MiB, 2_MiB)});
  EXPECT_EQ(late[0].size, asked);
}

TEST(start_state, undoes_map_and_unmap) {
  const snapshot source = recorded({segment_at(large_range, true, true, {{60_MiB, 0}})},
                                   {entry(action::segment_unmap, large_range + 80_MiB, 20_MiB),
                                    entry(action::segment_map, large_range + 20_MiB, 20_MiB)});
  const auto found = start_finder(source, 0).find(policies<pytorch_family::native>{});
  const auto& [segments, owners] = std::get<start_state>(found);
  ASSERT_EQ(segments.size(), 3u);
  EXPECT_EQ(segments[0].size, 20_MiB);
  EXPECT_EQ(segments[1].address, large_range + 40_MiB);
  EXPECT_EQ(segments[2].address, large_range + 80_MiB);
  EXPECT_TRUE(segments[2].large && segments[2].expandable);
  EXPECT_EQ(owners[0], owners[1]);
}

}  // namespace
