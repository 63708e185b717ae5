// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/core/bytes.hpp>
#include <tessera/plan/check_plan.hpp>

#include "../../conformance/planned_model.hpp"
#include "recorded_steps.hpp"
#include "tessera_replay/planner/make_plan.hpp"

namespace {

using namespace tessera;
using plan_tests::recorder;

/// Two steps that begin alike on stream 0, and one on stream 1. A block of the third entry lives into the next
/// step; one more kind is kept.
plan::made_plan sound() {
  plan::made_plan made;
  made.kinds = {{1000, 0, 0}, {2000, 8, 1}, {512, 0, 0}};
  //              kind, place, other, deaths
  made.entries = {{0, 0, 0, 1},   // 0 to 1,024; entry 2 may be live
                  {1, 2, 3, 2},   // 1,024 to 3,072; entry 2 is dead
                  {0, 6, 0, 4},   // 3,072 to 4,096; entries 0 and 1 are dead
                  {0, 2, 0, 5},   // 1,024 to 2,048, instead of entry 1; entry 0 is dead
                  {2, 12, 0, 5},  // 6,144 to 6,656
                  {2, memory_plan::keeps, 0, 5}};
  made.deaths = {2, 2, 0, 1, 0};
  made.steps = {{7, 0}};
  made.tracks = {{0, 2, 4, 1}, {5, 3, 6, 1}};
  made.numbers.bytes = 6656;
  return made;
}

struct broken {
  const char* rule;
  void (*by)(plan::made_plan&);
};
const std::vector<broken>& all_broken() {
  using p = plan::made_plan;
  static const std::vector<broken> all{
      {"the alignment is a power of two, at least 64", [](p& m) { m.numbers.alignment = 0; }},
      {"the alignment is a power of two, at least 64", [](p& m) { m.numbers.alignment = 32; }},
      {"the alignment is a power of two, at least 64", [](p& m) { m.numbers.alignment = 768; }},
      {"a plan has less than 2^60 bytes", [](p& m) { m.numbers.bytes = max_request + 1; }},
      {"a plan has less than 2^32 - 1 places",
       [](p& m) { m.numbers.bytes = std::uint64_t{0xFFFFFFFF} * 512; }},
      {"a plan has at most 255 tracks", [](p& m) { m.tracks.resize(256); }},
      {"tracks follow each other, and each has entries", [](p& m) { m.tracks[1].entries_end = 4; }},
      {"tracks follow each other, and each has entries", [](p& m) { m.tracks[1].entries_end = 7; }},
      {"tracks follow each other, and each has entries", [](p& m) { m.tracks[1].kinds_end = 1; }},
      {"tracks follow each other, and each has entries", [](p& m) { m.tracks[1].kinds_end = 4; }},
      {"tracks follow each other, and each has entries", [](p& m) { m.tracks[1].steps_end = 0; }},
      {"tracks follow each other, and each has entries", [](p& m) { m.tracks[0].steps_end = 2; }},
      {"tracks follow each other, and each has entries", [](p& m) { m.entries.clear(); }},
      {"the last track ends with the arrays", [](p& m) { m.tracks.pop_back(); }},
      {"the last track ends with the arrays", [](p& m) { m.kinds.push_back({1, 0, 0}); }},
      {"the last track ends with the arrays", [](p& m) { m.steps.push_back({1, 0}); }},
      {"a request has 1 to 2^60 - 1 bytes", [](p& m) { m.kinds[0].bytes = 0; }},
      {"a request has 1 to 2^60 - 1 bytes", [](p& m) { m.kinds[1].bytes = max_request + 1; }},
      {"kinds are in the order of their sizes", [](p& m) { m.kinds[1].bytes = 999; }},
      {"places lie in the plan's bytes", [](p& m) { m.kinds[1].kept = 4; }},
      {"places lie in the plan's bytes", [](p& m) { m.kinds[1].kept = 0xFFFFFFFF; }},
      {"places lie in the plan's bytes", [](p& m) { m.kinds[1].kept_place = 10; }},
      {"places lie in the plan's bytes", [](p& m) { m.kinds[1].bytes = 7000; }},
      {"places lie in the plan's bytes", [](p& m) { m.entries[2].place = 12; }},
      {"places lie in the plan's bytes", [](p& m) { m.entries[2].place = memory_plan::keeps - 1; }},
      {"places lie in the plan's bytes", [](p& m) { m.numbers.bytes = 6655; }},
      {"a plan has at most 2^22 kept places",
       [](p& m) {
         m.kinds[0] = {512, 0, 0xFFFFFFFA};
         m.numbers.bytes = std::uint64_t{0xFFFFFFFA} * 512;
       }},
      {"a step begins with an entry of its track", [](p& m) { m.steps[0].entry = 4; }},
      {"an entry has a kind of its track", [](p& m) { m.entries[4].kind = 0; }},
      {"an entry has a kind of its track", [](p& m) { m.entries[2].kind = 1'000'000'000; }},
      {"the deaths of entries follow each other", [](p& m) { m.entries[2].deaths = 0; }},
      {"the deaths of entries follow each other", [](p& m) { m.entries[5].deaths = 6; }},
      {"another entry comes later, and is named once", [](p& m) { m.entries[1].other = 1; }},
      {"another entry comes later, and is named once", [](p& m) { m.entries[1].other = 4; }},
      {"another entry comes later, and is named once", [](p& m) { m.entries[2].other = 3; }},
      {"entries are in preorder", [](p& m) { m.entries[0].other = 2; }},
      {"an entry names entries of its track", [](p& m) { m.deaths[0] = 4; }},
      {"an entry names entries of its track", [](p& m) { m.deaths[1] = 1'000'000; }},
      {"an entry is named once at the beginning of a step",
       [](p& m) {
         const memory_plan::entry first = m.entries[0];
         m.deaths.insert(m.deaths.begin() + first.deaths, {1u, 1u});
         for (memory_plan::entry& e : m.entries) e.deaths += 2;
       }},
      {"an entry that dies is live", [](p& m) { m.deaths[1] = 3; }},
      {"an entry that dies is live", [](p& m) { m.deaths[3] = 0; }},
      {"an entry that dies is live", [](p& m) { m.deaths[4] = 3; }},
      {"blocks that are live together do not overlap", [](p& m) { m.entries[1].place = 1; }},
      {"blocks that are live together do not overlap", [](p& m) { m.entries[3].place = 7; }},
      {"blocks that are live together do not overlap", [](p& m) { m.entries[2].place = 0; }},
      {"the ends of banks ascend, and lie in the plan's bytes", [](p& m) { m.bank_ends = {6657}; }},
      {"the ends of banks ascend, and lie in the plan's bytes", [](p& m) { m.bank_ends = {4096, 3072}; }},
      {"a plan has at most 64 banks", [](p& m) { m.bank_ends.assign(64, 4096); }},
      {"a place lies in one bank", [](p& m) { m.bank_ends = {512}; }},
      {"a place lies in one bank", [](p& m) { m.bank_ends = {6143}; }},
      {"a place lies in one bank", [](p& m) { m.bank_ends = {1024, 3072, 6145}; }},
      {"kept places and tracks do not overlap", [](p& m) { m.entries[4].place = 11; }},
      {"kept places and tracks do not overlap", [](p& m) { m.kinds[1].kept_place = 7; }},
      {"kept places and tracks do not overlap", [](p& m) { m.kinds[2].kept = 1; }},
  };
  return all;
}

TEST(check_plan, accepts_a_sound_plan) {
  EXPECT_STREQ(plan::find_fault(sound().view()), nullptr);
  EXPECT_STREQ(plan::find_fault(memory_plan{}), nullptr);
}

TEST(check_plan, names_each_broken_rule) {
  for (std::size_t i = 0; i < all_broken().size(); ++i) {
    plan::made_plan made = sound();
    all_broken()[i].by(made);
    EXPECT_STREQ(plan::find_fault(made.view()), all_broken()[i].rule) << "change " << i;
  }
}

// Kept blocks of one size may lie in two banks if a bank ends between two of them.
TEST(check_plan, accepts_banks_that_end_between_places) {
  plan::made_plan made = sound();
  made.bank_ends = {1024, 1024, 4096, 6144};
  EXPECT_STREQ(plan::find_fault(made.view()), nullptr);
  made.bank_ends = {6656};
  EXPECT_STREQ(plan::find_fault(made.view()), nullptr);
  made.kinds[1] = {2048, 8, 2};
  made.entries[4].place = 16;
  made.numbers.bytes = 8704;
  made.bank_ends = {6144};
  EXPECT_STREQ(plan::find_fault(made.view()), nullptr);
  made.bank_ends = {6656};
  EXPECT_STREQ(plan::find_fault(made.view()), "a place lies in one bank");
}

TEST(check_plan, reuses_the_place_of_a_block_that_died) {
  plan::made_plan made = sound();
  made.deaths = {2, 2, 1, 0, 0};
  EXPECT_STREQ(plan::find_fault(made.view()), nullptr);
  // On the other path, the block of the earlier step is still live.
  made.entries[2].place = 2;
  EXPECT_STREQ(plan::find_fault(made.view()), "blocks that are live together do not overlap");
  made.deaths.push_back(2);
  for (std::size_t i = 3; i < 6; ++i) ++made.entries[i].deaths;
  EXPECT_STREQ(plan::find_fault(made.view()), nullptr);
}

// The number of a step's first entry is a name, as long as the entry is of the track.
TEST(check_plan, accepts_a_mark_inside_a_step) {
  plan::made_plan made = sound();
  made.steps[0].entry = 2;
  EXPECT_STREQ(plan::find_fault(made.view()), nullptr);
}

// Every made plan is sound, and any change of it has a fault or leaves it readable.
TEST(check_plan, reads_no_plan_beyond_its_arrays) {
  std::size_t refused = 0, accepted = 0;
  for (std::uint64_t seed = 1; seed <= 150; ++seed) {
    const conformance::plans::script program(seed);
    const plan::made_plan made = plan_tests::make(program.record());
    ASSERT_STREQ(plan::find_fault(made.view()), nullptr) << "seed " << seed;
    conformance::plans::dice d(seed);
    for (int i = 0; i < 40; ++i) {
      plan::made_plan changed = made;
      conformance::plans::mutate(changed, d);
      ++(plan::find_fault(changed.view()) == nullptr ? accepted : refused);
    }
  }
  EXPECT_GT(refused, 1000u);
  EXPECT_GT(accepted, 500u);
}

}  // namespace
