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

trace::recording neighbour_of(const trace::recording& source, const replay::variation& by,
                              std::uint64_t seed) {
  return replay::neighbour_of(source, replay::recorded_steps(source), by, seed);
}

/// A program of steps: weights live throughout, a gradient until the next step, and activations within a step.
trace::recording stepped_program(std::uint64_t steps) {
  trace::recording made{.name = "steps", .events = {}};
  std::uint64_t id = 0;
  const auto allocate = [&](std::size_t bytes) { made.events.push_back({kind::allocate, id, bytes}); };
  allocate(1'000'000);
  std::uint64_t gradient = 0;
  for (std::uint64_t step = 0; step < steps; ++step) {
    made.events.push_back({kind::begin_step, step});
    const std::uint64_t first = ++id;
    for (; id < first + 2 + step % 5; ++id) allocate((step + 1) * 1'000 + id - first);
    if (gradient != 0) made.events.push_back({kind::free, gradient, 77});
    gradient = id;
    allocate(77);
    made.events.push_back({kind::record_stream, first, 0, stream_id{1}});
    for (std::uint64_t i = first; i < gradient; ++i)
      made.events.push_back({kind::free, i, (step + 1) * 1'000 + i - first});
  }
  return made;
}

TEST(neighbours, exchange_the_blocks_of_steps_and_leave_the_others) {
  constexpr std::uint64_t steps = 40;
  const trace::recording source = stepped_program(steps);
  EXPECT_EQ(replay::recorded_steps(source).count(), steps);
  const replay::variation only_steps{.order = false, .percent = 0};
  std::set<std::size_t> first_steps;
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    const trace::recording made = neighbour_of(source, only_steps, seed);
    ASSERT_EQ(made.events.size(), source.events.size());
    std::set<std::uint64_t> live;
    std::size_t place = 0, peak = 0;
    std::map<std::size_t, std::set<std::size_t>> steps_in_place;
    for (const trace::event& e : made.events) {
      place += e.what == kind::begin_step;
      if (e.what == kind::allocate) {
        EXPECT_TRUE(live.insert(e.id).second);
      }
      if (e.what == kind::record_stream) {
        EXPECT_TRUE(live.contains(e.id));
      }
      if (e.what == kind::free) {
        EXPECT_EQ(live.erase(e.id), 1u);
      }
      if (e.what == kind::allocate && e.bytes >= 1'000 && e.bytes < 1'000'000)
        steps_in_place[place].insert(e.bytes / 1'000);
      peak = std::max(peak, live.size());
    }
    EXPECT_LE(peak, 8u) << "activations of one step at a time, the weights and two gradients";
    ASSERT_EQ(steps_in_place.size(), steps);
    std::set<std::size_t> all;
    for (const auto& [at, from] : steps_in_place) {
      EXPECT_EQ(from.size(), 1u) << "place " << at;
      all.insert(*from.begin());
    }
    EXPECT_EQ(all.size(), steps);
    first_steps.insert(*steps_in_place[1].begin());
    std::vector<std::uint64_t> marks;
    for (const trace::event& e : made.events)
      if (e.what == kind::begin_step) marks.push_back(e.id);
    EXPECT_TRUE(std::is_sorted(marks.begin(), marks.end()));
  }
  EXPECT_GT(first_steps.size(), 10u);
}

TEST(neighbours, leave_the_blocks_of_private_pools_in_their_step) {
  trace::recording source = stepped_program(6);
  source.events.insert(source.events.begin() + 1, {kind::begin_pool, 1, 1});
  source.events.push_back({kind::end_pool, 1});
  EXPECT_EQ(differences(neighbour_of(source, {.order = false, .percent = 0}, 3), source), 0u);
}

TEST(neighbours, are_possible_programs) {
  const trace::recording source = some_program();
  for (std::uint64_t seed = 1; seed < 50; ++seed) {
    const trace::recording made = neighbour_of(source, {}, seed);
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

TEST(neighbours, have_frees_in_a_row_in_another_order_and_nothing_else) {
  const trace::recording source = some_program();
  const trace::recording made = neighbour_of(source, {.percent = 0}, 3);
  EXPECT_GT(differences(source, made), 200u);
  for (std::size_t i = 0; i < source.events.size(); ++i) {
    EXPECT_EQ(made.events[i].what, source.events[i].what);
    if (source.events[i].what != kind::free) {
      EXPECT_TRUE(is_same(made.events[i], source.events[i]));
    }
  }
}

TEST(neighbours, have_sizes_that_differ_by_a_few_percent_and_equal_ones_alike) {
  const trace::recording source = some_program();
  const trace::recording made = neighbour_of(source, {.order = false, .percent = 2}, 5);
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

TEST(neighbours, are_the_same_for_the_same_seed_and_the_program_itself_for_0) {
  const trace::recording source = some_program();
  EXPECT_EQ(differences(neighbour_of(source, {}, 9), neighbour_of(source, {}, 9)), 0u);
  EXPECT_GT(differences(neighbour_of(source, {}, 9), neighbour_of(source, {}, 10)), 1'000u);
  EXPECT_EQ(differences(neighbour_of(source, {}, 0), source), 0u);
  EXPECT_EQ(differences(neighbour_of(source, {.order = false, .percent = 0}, 9), source), 0u);
}

}  // namespace
