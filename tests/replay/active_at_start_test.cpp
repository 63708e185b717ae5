// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/core/bytes.hpp>
#include <tessera/observe/snapshot.hpp>
#include <tessera/trace/recording.hpp>
#include "tessera_replay/blocks_at_start.hpp"

namespace {

using namespace tessera;
using namespace tessera::trace;
using replay::block_at_start;
using replay::blocks_at_start;
using state = snapshot::block::state;
using action = snapshot::action;
using found = std::map<std::uint64_t, block_at_start>;

snapshot with(std::vector<snapshot::block> blocks, std::vector<snapshot::entry> entries) {
  snapshot s;
  s.name = "file";
  s.segments.push_back({.address = 4096, .size = 4096, .stream = stream_id{5}, .blocks = std::move(blocks)});
  s.traces.push_back(std::move(entries));
  return s;
}
found start_of(const snapshot& s, std::size_t device = 0) {
  const auto start = blocks_at_start(s, device);
  if (const auto* error = std::get_if<input_error>(&start)) {
    ADD_FAILURE() << error->text();
    return {};
  }
  return std::get<found>(start);
}

TEST(blocks_at_start, contains_blocks_absent_from_the_history) {
  const found start = start_of(with(
      {{4096, 1024, 1000, state::live}, {5120, 1024, 0, state::pending}, {6144, 2048, 3, state::free}}, {}));
  ASSERT_EQ(start.size(), 2u);
  EXPECT_EQ(start.at(4096).requested, 1000u);
  EXPECT_EQ(start.at(4096).size, 1024u);
  EXPECT_EQ(start.at(4096).stream, stream_id{5});
  EXPECT_TRUE(start.at(4096).live);
  EXPECT_EQ(start.at(5120).requested, 1024u) << "old versions do not tell what was requested";
  EXPECT_FALSE(start.at(5120).live);
}

TEST(blocks_at_start, contains_blocks_that_the_history_frees_first) {
  const found start = start_of(with(
      {{4096, 4096}},
      {
          {.what = action::free_requested, .address = 4096, .size = 9, .block = 64, .stream = stream_id{1}},
          {.what = action::free_completed, .address = 4608, .size = 8},
          {.what = action::free_completed, .address = 4096, .size = 9},
          {.what = action::alloc, .address = 4096, .size = 7},
          {.what = action::free_requested, .address = 4096, .size = 7},
          {.what = action::free_completed, .address = 4096, .size = 7},
      }));
  ASSERT_EQ(start.size(), 2u);
  EXPECT_EQ(start.at(4096).requested, 9u);
  EXPECT_EQ(start.at(4096).size, 64u);
  EXPECT_EQ(start.at(4096).stream, stream_id{1});
  EXPECT_TRUE(start.at(4096).live);
  EXPECT_EQ(start.at(4608).requested, 8u);
  EXPECT_EQ(start.at(4608).size, 0u);
  EXPECT_FALSE(start.at(4608).live) << "its user had freed it already";
}

TEST(blocks_at_start, does_not_contain_blocks_of_the_history) {
  EXPECT_TRUE(start_of(with({{4096, 4096, 4000, state::live}},
                            {{.what = action::segment_map, .address = 4096, .size = 4096},
                             {.what = action::alloc, .address = 4096, .size = 4000}}))
                  .empty());
}

TEST(blocks_at_start, of_one_device) {
  snapshot s = with({{4096, 4096, 4000, state::live}}, {});
  s.segments.push_back(
      {.device = 1, .address = 4096, .size = 4096, .blocks = {{4096, 4096, 17, state::live}}});
  EXPECT_EQ(start_of(s, 1).at(4096).requested, 17u);
  EXPECT_EQ(start_of(s, 0).at(4096).requested, 4000u);
  EXPECT_TRUE(start_of(s, 2).empty());
}

}  // namespace
