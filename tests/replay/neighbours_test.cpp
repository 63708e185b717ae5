// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/trace/recording.hpp>
#include "tessera_replay/neighbours.hpp"

namespace {

using namespace tessera;
using kind = trace::event::kind;

/// A program of random requests, with uses by other streams.
trace::recording some_program() {
  std::mt19937_64 random(1);
  trace::recording made{.name = "some", .events = {}};
  std::vector<std::pair<std::uint64_t, std::size_t>> live;
  for (std::uint64_t id = 0; id < 2'000; ++id) {
    const std::size_t bytes = (random() % 40 + 1) * 100'000;
    made.events.push_back({kind::allocate, id, bytes});
    if (random() % 4 == 0) made.events.push_back({kind::record_stream, id, 0, stream_id{1}});
    live.emplace_back(id, bytes);
    while (live.size() > 20 || (!live.empty() && random() % 3 == 0)) {
      std::swap(live[random() % live.size()], live.back());
      made.events.push_back({kind::free, live.back().first, live.back().second});
      live.pop_back();
    }
    if (random() % 50 == 0) made.events.push_back({kind::empty_cache});
  }
  return made;
}

bool is_same(const trace::event& a, const trace::event& b) {
  return a.what == b.what && a.id == b.id && a.bytes == b.bytes && a.stream == b.stream;
}
std::size_t differences(const trace::recording& a, const trace::recording& b) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < a.events.size(); ++i) count += !is_same(a.events[i], b.events[i]);
  return count;
}

TEST(neighbour_of, makes_possible_programs) {
  const trace::recording source = some_program();
  for (std::uint64_t seed = 1; seed < 50; ++seed) {
    const trace::recording made = replay::neighbour_of(source, {}, seed);
    ASSERT_EQ(made.events.size(), source.events.size());
    std::set<std::uint64_t> live, all;
    for (const trace::event& e : made.events) {
      if (e.what == kind::allocate) {
        EXPECT_TRUE(live.insert(e.id).second);
        all.insert(e.id);
      }
      if (e.what == kind::record_stream) {
        EXPECT_TRUE(live.contains(e.id));
      }
      if (e.what == kind::free) {
        EXPECT_EQ(live.erase(e.id), 1u);
      }
    }
    EXPECT_EQ(all.size(), 2'000u);
  }
}

TEST(neighbour_of, reorders_frees_in_a_row_and_nothing_else) {
  const trace::recording source = some_program();
  const trace::recording made = replay::neighbour_of(source, {.percent = 0}, 3);
  EXPECT_GT(differences(source, made), 200u);
  for (std::size_t i = 0; i < source.events.size(); ++i) {
    EXPECT_EQ(made.events[i].what, source.events[i].what);
    if (source.events[i].what != kind::free) {
      EXPECT_TRUE(is_same(made.events[i], source.events[i]));
    }
  }
}

TEST(neighbour_of, changes_sizes_by_a_few_percent_and_equal_ones_alike) {
  const trace::recording source = some_program();
  const trace::recording made = replay::neighbour_of(source, {.order = false, .percent = 2}, 5);
  std::map<std::size_t, std::size_t> size_for;
  double furthest = 0;
  for (std::size_t i = 0; i < source.events.size(); ++i) {
    const std::size_t from = source.events[i].bytes, to = made.events[i].bytes;
    if (source.events[i].what != kind::allocate) continue;
    EXPECT_EQ(size_for.try_emplace(from, to).first->second, to);
    furthest = std::max(furthest, std::abs(static_cast<double>(to) / static_cast<double>(from) - 1));
  }
  EXPECT_LE(furthest, 0.0201);
  EXPECT_GT(furthest, 0.015);
}

TEST(neighbour_of, is_the_same_for_the_same_seed_and_the_program_itself_for_0) {
  const trace::recording source = some_program();
  EXPECT_EQ(differences(replay::neighbour_of(source, {}, 9), replay::neighbour_of(source, {}, 9)), 0u);
  EXPECT_GT(differences(replay::neighbour_of(source, {}, 9), replay::neighbour_of(source, {}, 10)), 1'000u);
  EXPECT_EQ(differences(replay::neighbour_of(source, {}, 0), source), 0u);
  EXPECT_EQ(differences(replay::neighbour_of(source, {.order = false, .percent = 0}, 9), source), 0u);
}

}  // namespace
