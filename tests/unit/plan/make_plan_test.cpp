// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/core/bytes.hpp>
#include <tessera/plan/planned.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

#include "../../by_day.hpp"
#include "../../conformance/planned_model.hpp"
#include "recorded_steps.hpp"
#include "tessera_replay/planner/make_plan.hpp"
#include "tessera_replay/planner/place.hpp"

namespace {

using namespace tessera;
using namespace tessera::literals;
using plan::made_plan;
using plan_tests::make;
using plan_tests::recorder;
using kind = trace::event::kind;
using pool = planned<caching_allocator<pytorch<>, simulated_device, extension::private_pools>>;

/// Runs a program by a plan, and returns what the plan served.
plan_usage replay(const made_plan& made, const trace::recording& program) {
  EXPECT_STREQ(plan::find_fault(made.view()), nullptr);
  pool memory(made.view());
  EXPECT_EQ(trace::replay(trace::program(program), memory), 0u);
  EXPECT_STREQ(memory.audit(), nullptr);
  return memory.statistics().by_plan;
}
/// Expects that a plan serves a whole program.
void expect_served(const made_plan& made, const trace::recording& program, std::uint64_t requests) {
  const plan_usage used = replay(made, program);
  EXPECT_EQ(used.requests, requests);
  EXPECT_EQ(used.unplanned_requests, 0u);
}
template <typename T>
bool are_same(const std::vector<T>& a, const std::vector<T>& b) {
  static_assert(std::has_unique_object_representations_v<T>);
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

TEST(make_plan, shares_the_entries_of_repeated_steps) {
  recorder of;
  for (int i = 0; i < 10; ++i) of.step({5_MiB, 3_MiB, 4_MiB});
  const made_plan made = make(of.made);
  EXPECT_EQ(made.entries.size(), 3u);
  EXPECT_EQ(made.recorded_requests, 30u);
  EXPECT_EQ(made.recorded_steps, 10u);
  EXPECT_EQ(made.different_steps, 1u);
  EXPECT_EQ(made.numbers.bytes, 8_MiB);
  EXPECT_EQ(made.numbers.peak_live, 8_MiB);
  EXPECT_EQ(made.numbers.lower_bound, 8_MiB);
  expect_served(made, of.made, 30);
}

TEST(make_plan, shares_the_first_entries_of_steps_that_begin_alike) {
  recorder of;
  for (int i = 0; i < 6; ++i) {
    of.begin_step();
    of.step({5_MiB, 3_MiB, 4_MiB});
    of.begin_step();
    of.step({5_MiB, 3_MiB, 7_MiB, 2_MiB});
  }
  const made_plan made = make(of.made);
  EXPECT_EQ(made.entries.size(), 5u);
  EXPECT_EQ(made.different_steps, 2u);
  EXPECT_EQ(made.numbers.bytes, 10_MiB);
  expect_served(made, of.made, 42);
  // Steps may come in another order than recorded.
  recorder other;
  for (int i = 0; i < 5; ++i) other.step({5_MiB, 3_MiB, 7_MiB, 2_MiB});
  for (int i = 0; i < 5; ++i) other.step({5_MiB, 3_MiB, 4_MiB});
  expect_served(made, other.made, 35);
}

// Gradients are freed in the middle of the next step.
TEST(make_plan, places_blocks_that_live_into_the_next_step) {
  recorder of;
  std::uint64_t gradient = 0;
  for (int i = 0; i < 12; ++i) {
    if (i % 3 == 1) of.begin_step(2);
    if (i % 3 != 1) of.begin_step(1);
    const std::uint64_t forward = of.allocate(i % 3 == 1 ? 6_MiB : 5_MiB);
    if (i > 0) of.free(gradient);
    const std::uint64_t backward = of.allocate(4_MiB);
    gradient = of.allocate(3_MiB);
    of.free(forward);
    of.free(backward);
  }
  of.free(gradient);
  const made_plan made = make(of.made);
  EXPECT_LT(made.entries.size(), 10u);
  EXPECT_EQ(made.recorded_steps, 12u);
  EXPECT_LE(made.numbers.bytes, 13_MiB);
  expect_served(made, of.made, 36);
}

// Such as weights, and the states of an optimizer that the first step makes.
TEST(make_plan, keeps_blocks_that_outlive_the_steps) {
  recorder of;
  of.allocate(9_MiB);
  of.allocate(9_MiB);
  for (int i = 0; i < 20; ++i) {
    of.step({5_MiB, 3_MiB});
    if (i == 0) of.allocate(8_MiB);
  }
  const made_plan made = make(of.made);
  EXPECT_EQ(made.numbers.bytes, 34_MiB);
  expect_served(made, of.made, 43);
}

TEST(make_plan, takes_the_steps_that_the_program_marks) {
  recorder of;
  for (std::uint64_t i = 0; i < 8; ++i) {
    of.begin_step(1 + i % 2);
    i % 2 == 0 ? of.step({5_MiB, 3_MiB}) : of.step({3_MiB, 5_MiB, 1_MiB});
  }
  const made_plan made = make(of.made);
  EXPECT_EQ(made.recorded_steps, 8u);
  EXPECT_EQ(made.different_steps, 2u);
  EXPECT_EQ(made.entries.size(), 5u);
  bool has_first = false, has_second = false;
  for (const memory_plan::step& s : made.steps) {
    const std::uint64_t bytes = made.kinds[made.entries[s.entry].kind].bytes;
    has_first |= s.key == 1 && bytes == 5_MiB;
    has_second |= s.key == 2 && bytes == 3_MiB;
  }
  EXPECT_TRUE(has_first && has_second);
  expect_served(made, of.made, 20);
}

TEST(make_plan, gives_each_stream_places_of_its_own) {
  recorder of;
  for (int i = 0; i < 10; ++i) {
    const std::uint64_t one = of.allocate(5_MiB, 0), other = of.allocate(7_MiB, 9);
    of.free(one);
    of.free(other);
  }
  const made_plan made = make(of.made);
  ASSERT_EQ(made.tracks.size(), 2u);
  EXPECT_EQ(made.tracks[0].stream, 0u);
  EXPECT_EQ(made.tracks[1].stream, 9u);
  EXPECT_EQ(made.numbers.bytes, 12_MiB);
  expect_served(made, of.made, 20);
}

// Without a plan, such streams use the same memory one after the other.
TEST(make_plan, leaves_out_streams_that_never_need_memory_together) {
  recorder of;
  for (int i = 0; i < 10; ++i) {
    of.step({5_MiB, 3_MiB}, 0);
    of.step({5_MiB, 2_MiB, 1_MiB}, 9);
  }
  const made_plan made = make(of.made);
  EXPECT_EQ(made.tracks.size(), 1u);
  EXPECT_EQ(replay(made, of.made).requests, 20u);
}

// A recipe keeps the memory of each stream. So places for all streams may cost less than the recipe alone.
TEST(make_plan, plans_all_streams_if_that_needs_less_than_the_recipe) {
  recorder of;
  for (int i = 0; i < 10; ++i) {
    of.step({5_MiB, 3_MiB}, 0);
    of.step({5_MiB, 2_MiB, 1_MiB}, 9);
  }
  EXPECT_EQ(make(of.made, {.reserved_without = 15_MiB - 1}).tracks.size(), 1u);
  const made_plan made = make(of.made, {.reserved_without = 15_MiB});
  EXPECT_EQ(made.tracks.size(), 2u);
  EXPECT_EQ(made.numbers.bytes, 15_MiB);
  EXPECT_EQ(made.left_out_streams, 0u);
  expect_served(made, of.made, 50);
}

/// Steps of a block that stream 1 uses, then four that could take its place.
trace::recording used_by_another_stream(std::vector<std::uint64_t>& used) {
  recorder of;
  of.allocate(8_MiB);
  for (int i = 0; i < 30; ++i) {
    used.push_back(of.allocate(64_KiB));
    of.made.events.push_back({kind::record_stream, used.back(), 0, stream_id{1}});
    of.free(used.back());
    for (const std::size_t bytes : {48_KiB, 40_KiB, 32_KiB, 24_KiB}) of.free(of.allocate(bytes));
  }
  return of.made;
}

TEST(make_plan, holds_the_places_of_blocks_that_slower_streams_may_use) {
  std::vector<std::uint64_t> used;
  const trace::recording program = used_by_another_stream(used);
  const made_plan made = make(program);
  EXPECT_LE(made.numbers.bytes, 8_MiB + 8_MiB / 32);
  pool memory(made.view());
  std::vector<void*> blocks(program.events.size());
  for (const trace::event& e : program.events) {
    // The stream is done when the next step begins.
    if (e.what == kind::allocate && e.bytes == 64_KiB) memory.provider().hold_events(false);
    if (e.what == kind::allocate) blocks[e.id] = memory.allocate(e.bytes);
    if (e.what == kind::record_stream) {
      EXPECT_TRUE(memory.record_stream(blocks[e.id], e.stream));
      memory.provider().hold_events(true);
    }
    if (e.what == kind::free) memory.deallocate(blocks[e.id]);
  }
  memory.provider().hold_events(false);
  EXPECT_EQ(memory.statistics().by_plan.unplanned_requests, 0u);
}

// Snapshots do not say which streams use a block, but that its free completed late.
TEST(make_plan, holds_the_places_of_blocks_that_were_freed_late) {
  trace::recording recorded, late;
  recorded = used_by_another_stream(late.completed_late);
  for (const trace::event& e : recorded.events) {
    if (e.what != kind::record_stream) late.events.push_back(e);
  }
  const made_plan one = make(recorded), two = make(late);
  EXPECT_TRUE(are_same(one.entries, two.entries));
  late.completed_late.clear();
  EXPECT_LT(make(late).numbers.bytes, two.numbers.bytes);
}

// The times of a recording that sets when events are complete hold.
TEST(make_plan, believes_a_recording_that_says_when_events_are_complete) {
  std::vector<std::uint64_t> used;
  trace::recording program = used_by_another_stream(used);
  const std::size_t held = make(program).numbers.bytes;
  program.events.insert(program.events.begin(), {kind::answer_events, 0, 1});
  EXPECT_LT(make(program).numbers.bytes, held);
}

// Each request of a loader's stream is a step: any free kept place serves it.
TEST(make_plan, keeps_the_ring_of_a_loader) {
  recorder of;
  std::vector<std::uint64_t> ring;
  for (int i = 0; i < 100; ++i) {
    ring.push_back(of.allocate(2_MiB, 3));
    if (ring.size() < 4) continue;
    of.free(ring.front());
    ring.erase(ring.begin());
  }
  const made_plan made = make(of.made);
  EXPECT_LE(made.entries.size(), 5u);
  EXPECT_EQ(made.numbers.bytes, 8_MiB);
  expect_served(made, of.made, 100);
}

TEST(make_plan, reads_a_window_of_the_recording) {
  recorder of;
  of.step({9_MiB});                                      // 2 events
  for (int i = 0; i < 10; ++i) of.step({5_MiB, 3_MiB});  // 40 events
  of.step({11_MiB});
  const made_plan made = make(of.made, {.first_event = 2, .end_event = 42});
  EXPECT_EQ(made.numbers.first_event, 2u);
  EXPECT_EQ(made.numbers.end_event, 42u);
  EXPECT_EQ(made.recorded_requests, 20u);
  EXPECT_EQ(made.numbers.bytes, 8_MiB);
  const plan_usage used = replay(made, of.made);
  EXPECT_EQ(used.requests, 20u);
  EXPECT_EQ(used.unplanned_requests, 2u);
  // A window may begin with frees of earlier blocks, and end with live ones.
  const made_plan part = make(of.made, {.first_event = 4, .end_event = 9});
  EXPECT_STREQ(plan::find_fault(part.view()), nullptr);
  EXPECT_EQ(make(of.made, {.first_event = 1000}).recorded_requests, 0u);
  EXPECT_EQ(make(of.made, {.first_event = 9, .end_event = 4}).recorded_requests, 0u);
}

TEST(make_plan, leaves_out_requests_in_scopes_of_private_pools) {
  recorder of;
  for (int i = 0; i < 5; ++i) of.step({5_MiB, 3_MiB});
  of.made.events.push_back({kind::begin_pool, 1, 1});
  const std::uint64_t in_scope = of.allocate(40_MiB);
  of.made.events.push_back({kind::end_pool, 1});
  for (int i = 0; i < 5; ++i) of.step({5_MiB, 3_MiB});
  of.free(in_scope);
  const made_plan made = make(of.made);
  EXPECT_EQ(made.recorded_requests, 20u);
  EXPECT_EQ(made.numbers.bytes, 8_MiB);
  EXPECT_EQ(replay(made, of.made).requests, 20u);
  // Also if the scope opens before the window.
  EXPECT_EQ(make(of.made, {.first_event = 21, .end_event = 22}).recorded_requests, 0u);
}

TEST(make_plan, has_no_entries_for_a_recording_without_requests) {
  for (const trace::recording& source :
       {trace::recording{"empty", {}}, trace::recording{"a step", {{kind::begin_step, 3}}}}) {
    const made_plan made = make(source);
    EXPECT_TRUE(made.view().empty());
    EXPECT_STREQ(plan::find_fault(made.view()), nullptr);
    EXPECT_EQ(made.numbers.bytes, 0u);
    pool memory(made.view());
    memory.begin_step(3);
    memory.deallocate(memory.allocate(5_MiB));
    EXPECT_EQ(memory.statistics().by_plan.unplanned_requests, 1u);
  }
}

TEST(make_plan, places_requests_that_are_never_freed) {
  recorder of;
  for (std::size_t i = 1; i <= 20; ++i) of.allocate(i * 1_MiB);
  const made_plan made = make(of.made);
  EXPECT_EQ(made.numbers.bytes, 210_MiB);
  expect_served(made, of.made, 20);
}

TEST(make_plan, is_deterministic) {
  for (std::uint64_t seed = 1; seed < by_day(10u, 40u); ++seed) {
    const trace::recording source = conformance::plans::script(seed).record();
    const made_plan one = plan::make(source, {.effort = 0}), two = plan::make(source, {.effort = 0});
    EXPECT_EQ(one.numbers.fingerprint, two.numbers.fingerprint);
    EXPECT_EQ(one.numbers.bytes, two.numbers.bytes);
    ASSERT_EQ(one.steps.size(), two.steps.size());
    for (std::size_t i = 0; i < one.steps.size(); ++i)
      EXPECT_TRUE(one.steps[i].key == two.steps[i].key && one.steps[i].entry == two.steps[i].entry);
    EXPECT_TRUE(are_same(one.deaths, two.deaths) && are_same(one.entries, two.entries) &&
                are_same(one.kinds, two.kinds))
        << "seed " << seed;
  }
}

/// Writes loops whose frees come in another order each time.
struct looping : recorder {
  plan::detail::random_numbers random;
  std::vector<std::uint64_t> crossing;

  explicit looping(std::uint64_t seed) : random(seed) {
    for (int i = 0; i < 20; ++i) allocate(8_MiB);  // weights
  }
  [[nodiscard]] std::vector<std::size_t> sizes(std::size_t count) {
    std::vector<std::size_t> chosen;
    while (chosen.size() < count) chosen.push_back(512 * (1 + random.below(20'000)));
    return chosen;
  }
  /// Makes requests. A few blocks live at a time; the last `crosses` live into the next pass.
  void pass(const std::vector<std::size_t>& sizes, std::size_t crosses) {
    std::vector<std::uint64_t> live;
    const auto free_one_of = [&](std::size_t count) {
      const auto at = live.begin() + static_cast<std::ptrdiff_t>(random.below(count));
      free(*at);
      live.erase(at);
    };
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      live.push_back(allocate(sizes[i]));
      if (i == sizes.size() / 3) free_crossing();
      if (live.size() > 6) free_one_of(3);
    }
    while (live.size() > crosses) free_one_of(live.size());
    crossing.insert(crossing.end(), live.begin(), live.end());
  }
  void free_crossing() {
    for (const std::uint64_t id : crossing) free(id);
    crossing.clear();
  }
};

/// Expects that the steps are found, and that the plan is short and serves the program.
void expect_steps(const looping& of, std::size_t steps, std::size_t different, const std::string& what) {
  const made_plan made = plan::make(of.made, {.effort = 0.2});
  EXPECT_EQ(made.recorded_steps, steps) << what;
  EXPECT_LE(made.different_steps, different) << what;
  EXPECT_LT(made.entries.size(), made.recorded_requests / 2) << what;
  EXPECT_EQ(replay(made, of.made).unplanned_requests, 0u) << what;
}

// No clock is read: a machine that pauses in the search gives the same plan.
TEST(make_plan, does_not_depend_on_time) {
  looping of(2);
  const std::vector<std::size_t> step = of.sizes(200);
  for (int i = 0; i < 5; ++i) of.pass(step, 2);
  of.free_crossing();
  plan::make_options options{.effort = 0.02};
  const made_plan one = plan::make(of.made, options);
  int reports = 0;
  options.progress = [](void* state, std::size_t, std::size_t) {
    if (++*static_cast<int*>(state) == 1) std::this_thread::sleep_for(std::chrono::milliseconds(1200));
  };
  options.progress_state = &reports;
  const made_plan two = plan::make(of.made, options);
  EXPECT_GE(reports, 1);
  EXPECT_TRUE(are_same(one.deaths, two.deaths) && are_same(one.entries, two.entries) &&
              are_same(one.kinds, two.kinds));
}

TEST(make_plan, finds_the_steps_of_loops_with_frees_in_any_order) {
  for (std::uint64_t seed = 1; seed <= by_day(1u, 3u); ++seed) {
    looping plain(seed);
    const std::vector<std::size_t> step = plain.sizes(20 + 30 * seed);
    for (int i = 0; i < 25; ++i) plain.pass(step, 0);
    expect_steps(plain, 25, 1, "plain, seed " + std::to_string(seed));

    looping crossing(seed);
    for (int i = 0; i < 25; ++i) crossing.pass(step, 1);
    crossing.free_crossing();
    expect_steps(crossing, 25, 1, "crossing, seed " + std::to_string(seed));

    looping framed(100 + seed);
    framed.pass(framed.sizes(70), 0);
    for (int i = 0; i < 12; ++i) framed.pass(step, 0);
    framed.pass(framed.sizes(30), 0);
    expect_steps(framed, 12, 1, "with requests before and behind, seed " + std::to_string(seed));
  }
}

TEST(make_plan, finds_the_outer_of_two_loops) {
  for (std::uint64_t seed = 1; seed <= by_day(1u, 5u); ++seed) {
    looping accumulation(seed);
    const std::vector<std::size_t> micro = accumulation.sizes(30), optimizer = accumulation.sizes(40);
    for (int i = 0; i < 8; ++i) {
      for (int k = 0; k < 4; ++k) accumulation.pass(micro, 0);
      accumulation.pass(optimizer, 0);
    }
    expect_steps(accumulation, 8, 1, "accumulation, seed " + std::to_string(seed));

    looping layers(seed);
    const std::vector<std::size_t> layer = layers.sizes(9), head = layers.sizes(3);
    for (int i = 0; i < 15; ++i) {
      for (int k = 0; k < 12; ++k) layers.pass(layer, 0);
      layers.pass(head, 0);
    }
    expect_steps(layers, 15, 1, "layers, seed " + std::to_string(seed));

    looping alternating(seed);
    const std::vector<std::size_t> train = alternating.sizes(60), evaluate = alternating.sizes(45);
    for (int i = 0; i < 20; ++i) alternating.pass(i % 2 == 0 ? train : evaluate, 0);
    expect_steps(alternating, 10, 1, "alternating, seed " + std::to_string(seed));
  }
}

TEST(make_plan, finds_steps_that_differ_a_little) {
  looping of(1);
  const std::vector<std::size_t> usual = of.sizes(100);
  std::vector<std::size_t> longer = usual;
  longer.insert(longer.begin() + 50, 77 * 512);
  for (int i = 0; i < 30; ++i) of.pass(of.random.below(4) == 0 ? longer : usual, 0);
  expect_steps(of, 30, 2, "one request more");
}

TEST(make_plan, divides_a_long_recording_soon) {
  looping of(1);
  const std::vector<std::size_t> step = of.sizes(1000);
  constexpr int passes = by_day(20, 100);
  for (int i = 0; i < passes; ++i) of.pass(step, 0);
  expect_steps(of, passes, 1, "passes of 1,000 requests");
}

TEST(make_plan, stops_when_the_plan_fits_a_capacity) {
  looping of(3);
  const std::vector<std::size_t> step = of.sizes(40);
  for (int i = 0; i < 25; ++i) of.pass(step, 0);
  const made_plan steps = plan::make(of.made, {.effort = 0.2});
  ASSERT_EQ(steps.recorded_steps, 25u);
  ASSERT_GT(steps.numbers.bytes, steps.numbers.peak_live + 1_MiB);
  EXPECT_EQ(plan::make(of.made, {.effort = 0.2, .capacity = steps.numbers.bytes}).recorded_steps, 25u);
  // The steps need more than the recorded program, where each block died in its own time.
  const std::size_t capacity = steps.numbers.peak_live + 1_MiB;
  const made_plan whole = plan::make(of.made, {.effort = 0.2, .capacity = capacity});
  EXPECT_EQ(whole.recorded_steps, 1u);
  EXPECT_LE(whole.numbers.bytes, capacity);
  expect_served(whole, of.made, whole.recorded_requests);
  // Nothing fits less than peak live.
  EXPECT_EQ(plan::make(of.made, {.effort = 0.2, .capacity = 1_MiB}).recorded_steps, 25u);
}

TEST(make_plan, tells_programs_apart_by_their_fingerprints) {
  recorder one, two, three;
  one.step({5_MiB, 3_MiB});
  two.step({3_MiB, 5_MiB});
  three.step({5_MiB, 3_MiB}, 1);
  three.step({5_MiB});
  EXPECT_NE(make(one.made).numbers.fingerprint, make(two.made).numbers.fingerprint);
  EXPECT_NE(make(one.made).numbers.fingerprint, make(three.made).numbers.fingerprint);
}

/// Steps of one beginning. Each has a large block of another size, which lives into the next step.
trace::recording differing_steps(std::size_t count) {
  recorder of;
  std::uint64_t previous = 0;
  for (std::size_t s = 0; s < count; ++s) {
    of.begin_step();
    const std::uint64_t first = of.allocate(1_MiB);
    const std::uint64_t large = of.allocate(8_MiB + 512 * (s + 1));
    if (s > 0) of.free(previous);
    previous = large;
    for (int i = 0; i < 2; ++i) of.free(of.allocate(4_KiB));
    of.free(first);
  }
  return of.made;
}

TEST(make_plan, plans_more_steps_than_it_compares) {
  for (const std::size_t count : {64u, 65u, 300u}) {
    const trace::recording program = differing_steps(count);
    const made_plan made = make(program);
    ASSERT_STREQ(plan::find_fault(made.view()), nullptr) << count << " steps";
    EXPECT_EQ(replay(made, program).unplanned_requests, 0u) << count << " steps";
  }
}

TEST(make_plan, leaves_out_the_streams_beyond_255) {
  recorder of;
  std::vector<std::uint64_t> blocks;
  for (std::uint64_t stream = 0; stream < 300; ++stream) blocks.push_back(of.allocate(1_MiB, stream));
  for (const std::uint64_t block : blocks) of.free(block);
  const made_plan made = make(of.made);
  EXPECT_EQ(made.tracks.size(), 255u);
  EXPECT_EQ(made.left_out_streams, 45u);
  EXPECT_EQ(made.left_out_requests, 45u);
  EXPECT_EQ(replay(made, of.made).requests, 255u);
}

TEST(make_plan, refuses_an_alignment_that_is_no_power_of_two) {
  recorder of;
  of.step({1_MiB});
  for (const std::uint32_t alignment : {0u, 1u, 63u, 1000u})
    EXPECT_DEATH((void)make(of.made, {.alignment = alignment}), "the alignment must be a power of two");
}

TEST(make_plan, notes_a_key_once_and_for_streams_that_begin_later) {
  recorder of;
  for (int s = 0; s < 100; ++s) {
    of.begin_step(7);
    if (s > 0) of.step({2_MiB}, 1);
    of.step({1_MiB});
  }
  const made_plan made = make(of.made);
  ASSERT_EQ(2 * made.tracks.size(), made.steps.size());
  for (std::size_t i = 0; i < made.steps.size(); ++i) EXPECT_EQ(made.steps[i].key, i % 2 == 0 ? 0u : 7u);
}

TEST(make_plan, aligns_places) {
  recorder of;
  for (int i = 0; i < 4; ++i) of.step({100, 1, 5000});
  for (const std::uint32_t alignment : {64u, 512u, 1u << 21}) {
    const made_plan made = make(of.made, {.alignment = alignment});
    EXPECT_EQ(made.numbers.alignment, alignment);
    EXPECT_EQ(made.numbers.bytes, alignment + align_up(std::size_t{5000}, alignment));
    expect_served(made, of.made, 12);
  }
}

}  // namespace
