// SPDX-License-Identifier: Apache-2.0
// The parts of tessera-replay tune: policies that are chosen at run time, the compositions, and the advice.
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/caching_allocator.hpp>
#include <tessera/core/bytes.hpp>
#include <tessera/law/policy_laws.hpp>
#include <tessera/policy/chunks.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tool/any_recipe.hpp>
#include <tessera/trace/csv.hpp>
#include <tessera/trace/recording.hpp>
#include "tessera_replay/lifetimes.hpp"

#include "by_day.hpp"
#include "tessera_replay/input.hpp"
#include "tessera_replay/recipes.hpp"
#include "tessera_replay/replayed.hpp"
#include "tessera_replay/tune_advice.hpp"
#include "tessera_replay/tune_composition.hpp"
#include "tessera_replay/tune_search.hpp"

namespace {

using namespace replay::tune;
using kind = trace::event::kind;

constexpr const char* shipped_names[] = {"pytorch",
                                         "pytorch_expandable",
                                         "cuda_async",
                                         "torch_npu",
                                         "torch_npu_expandable",
                                         "paddle_auto_growth",
                                         "pinned",
                                         "paddle_naive_best_fit",
                                         "stitched",
                                         "stitched_calmly",
                                         "power_of_two",
                                         "passthrough",
                                         "pinned_expandable",
                                         "pinned_packed"};

replay::any_recipe recipe_named(const std::string& name) {
  return std::get<replay::any_recipe>(replay::recipe_list().choose(name, "", {}));
}

std::vector<std::pair<std::string, composition>> shipped() {
  std::vector<std::pair<std::string, composition>> all;
  for (const std::string name : shipped_names) {
    const auto made = recipe_named(name).composed();
    if (made) all.emplace_back(name, *made);
  }
  return all;
}

trace::recording read(const std::string& name) {
  const auto text = replay::read_file(TESSERA_EXAMPLES_DIR "/traces/" + name + ".csv");
  auto recording = replay::read_text_trace(std::get<std::string>(text), name);
  return std::get<trace::recording>(std::move(recording));
}

/// The result of a program: a digest of the addresses, and the calls of the device.
struct deeds {
  std::uint64_t addresses = 0;
  std::size_t failures = 0;
  std::size_t peak_reserved = 0;
  std::uint64_t device_ns = 0;
  bool operator==(const deeds&) const = default;
};
template <typename Pool>
deeds done_by(const trace::program& program, Pool&& pool) {
  deeds done;
  done.failures = trace::replay(
      program, pool, [](std::size_t) {},
      [&](std::size_t, const void* p) {
        done.addresses = (done.addresses ^ reinterpret_cast<std::uintptr_t>(p)) * 0x100000001b3u;
      });
  done.peak_reserved = pool.provider().peak_used();
  done.device_ns = pool.provider().now_ns();
  return done;
}

TEST(tune_policies, decide_as_the_shipped_recipes_that_they_hold) {
  const trace::recording recording = read("gnn_sage_streams");
  const trace::program program(recording);
  int held = 0;
  int failing = 0;
  for (const char* const name : shipped_names) {
    for (const std::size_t capacity : {80_GiB, program.peak_live() / 2 * 3}) {
      const replay::any_recipe recipe = recipe_named(name);
      const auto made = recipe.composed();
      ASSERT_TRUE(made) << name << ": " << recipe.axis_out_of_search();
      const deeds compiled = done_by(program, recipe.make(replay::device_of(capacity)));
      const deeds when_run = with_recipe(*made, [&]<typename Held>(const policies<Held>& same) {
        return done_by(program, replay::replayed<Held>{replay::device_of(capacity), same});
      });
      EXPECT_EQ(when_run.addresses, compiled.addresses) << name << ", capacity " << capacity;
      EXPECT_TRUE(when_run == compiled) << name << ", capacity " << capacity;
      failing += compiled.failures > 0;
      ++held;
    }
  }
  EXPECT_EQ(held, 28);
  EXPECT_GT(failing, 0);  // so recovery is compared, too
}

// Compositions that no shipped recipe has obey the laws, too.
static_assert(law::policy(segments_below<0>{.large = 512_MiB}));
static_assert(law::policy(segments_below<64_MiB>{.large = 64_MiB}));
static_assert(law::policy(segments_below<256_MiB>{.large = 512_MiB}));
static_assert(law::policy(grow_by_chunks<>{.small_chunk = 2_MiB, .large = 1_GiB}));
static_assert(law::policy(grow_by_schedule<>{.schedule = chunk_schedule{2_MiB, 16_MiB}}));
static_assert(law::policy(grow_by_mapping<>{.large = 128_MiB}));
static_assert(law::policy(grow_by_stitching<>{.peak_parts = 4, .slack = percent(0)}));
static_assert(law::policy(multiple<64>{}) && law::policy(multiple<2_MiB>{}));
static_assert(law::policy(round_to_power_of_two<512, tunable(unlimited)>{.threshold = 1_MiB}));
static_assert(law::policy(split_below<>{.max = 2_MiB, .slack = 128_MiB}));
static_assert(law::policy(split_expandable{.max = 2_MiB}));
static_assert(law::policy(rest<1_MiB, high>{}));
static_assert(law::policy(evict_at_free<tunable(unlimited)>{.threshold = 1_MiB}));

/// A policy that tessera does not have.
struct whole_kib {
  [[nodiscard]] static constexpr std::size_t block_size(std::size_t n) noexcept { return align_up(n, 3_KiB); }
  bool operator==(const whole_kib&) const = default;
};

TEST(tune_text, names_policies_of_a_program) {
  composition c;
  c.rounding = own_rounding(whole_kib{});
  EXPECT_NE(as_variation(c).find("whole_kib>"), std::string::npos) << as_variation(c);
  EXPECT_NE(as_recipe(c, "mine").find("// Include the header of your policy "), std::string::npos);
  EXPECT_EQ(as_recipe({}, "mine").find("// Include"), std::string::npos);
}

TEST(tune_grid, tries_policies_of_a_program_on_their_axis) {
  program_traits known;
  known.own.rounding.push_back(own_rounding(whole_kib{}));
  std::size_t found = 0;
  for (const composition& c : neighbours({}, known)) found += c.rounding.is<own_rounding>();
  EXPECT_EQ(found, 1u);
}

TEST(tune_text, names_a_recipe_by_how_it_differs_from_pytorch) {
  EXPECT_EQ(as_variation({}), "pytorch<>");
  composition c;
  c.rounding = round_to_divisions<512>{.table = divisions::all(4)};
  c.split = split_below<>{.max = 32_MiB};
  c.growth = grow_by_stitching<>{.peak_parts = 32};
  c.eviction = evict_at_free<tunable(unlimited)>{.threshold = 5};
  EXPECT_EQ(as_variation(c),
            "with<pytorch<>, round_to_divisions<512, divisions::all(4)>, split_below<32_MiB>, "
            "grow_by_stitching<std::size_t{32}>, evict_at_free<std::size_t{5}>>");
}

TEST(tune_text, is_a_complete_recipe) {
  composition c;
  c.growth = grow_by_schedule<>{.schedule = chunk_schedule{1_GiB, 16_MiB}};
  c.recovery = recover_by_emptying_cache<tunable(false)>{.accepts_exact_size = true};
  EXPECT_EQ(
      as_recipe(c, "mine"),
      "#include <cstddef>\n"
      "#include <tessera/tessera.hpp>\n"
      "using namespace tessera::literals;\n"
      "\n"
      "struct mine final {\n"
      "  using rounding = tessera::policy::round_to_divisions<512>;\n"
      "  using pools    = tessera::policy::pool_small_and_large<1_MiB>;\n"
      "  using streams  = tessera::policy::reuse_on_same_stream;\n"
      "  using split    = tessera::policy::split_below<>;\n"
      "  using pages    = tessera::policy::normal_pages;\n"
      "  using growth   = tessera::policy::grow_by_schedule<tessera::policy::chunk_schedule{1_GiB, 16_MiB, "
      "tessera::percent(92)}>;\n"
      "  using eviction = tessera::policy::evict_idle_above<tessera::percent(0), true>;\n"
      "  using recovery = tessera::policy::recover_by_emptying_cache<true>;\n"
      "};\n"
      "static_assert(tessera::recipe::well_formed<mine>);\n");
}

TEST(tune_grid, changes_one_policy_at_a_time_on_every_axis) {
  const program_traits known{.peak_live = 1_GiB, .several_streams = true, .has_capacity = true};
  const auto here = policy_texts({});
  std::array<int, axes> changed{};
  for (const composition& c : neighbours({}, known)) {
    EXPECT_LE(deviations(c), 1u) << as_variation(c);
    const auto there = policy_texts(c);
    for (std::size_t axis = 0; axis < axes; ++axis) changed[axis] += there[axis] != here[axis];
  }
  for (std::size_t axis = 0; axis < axes; ++axis) EXPECT_GT(changed[axis], 0) << axis_names[axis];
}

TEST(tune_grid, needs_no_changes_of_a_program_with_several_streams) {
  const program_traits known{.peak_live = 1_GiB, .several_streams = true};
  for (const composition& c : neighbours({}, known)) EXPECT_FALSE(needs_program_changes(c, known));
  composition ignoring;
  ignoring.streams = reuse_immediately{};
  EXPECT_TRUE(needs_program_changes(ignoring, known));
  EXPECT_FALSE(needs_program_changes(ignoring, {.peak_live = 1_GiB}));
}

TEST(tune_grid, simplifies_equivalent_compositions) {
  const trace::recording recording = read("gnn_sage");
  const trace::program program(recording);
  const program_traits known{.peak_live = program.peak_live(), .several_streams = true};
  for (const auto& [name, made] : shipped()) {
    const auto there = replay_once(program, made, 80_GiB);
    const auto here = replay_once(program, simplified(made, known), 80_GiB);
    EXPECT_EQ(here.peak_reserved, there.peak_reserved) << name;
    EXPECT_EQ(here.device_ns, there.device_ns) << name;
  }
}

timed_candidate costing(std::size_t memory, std::uint64_t device_ns, double host_ns) {
  timed_candidate r;
  r.what.memory = memory;
  r.what.device_ns = device_ns;
  r.host_ns = host_ns;
  return r;
}

TEST(tune_front, keeps_the_pareto_front) {
  const std::vector<timed_candidate> front =
      front_of({costing(1000, 1000, 30), costing(1000, 2000, 40),   // worse in two: removed
                costing(2000, 500, 40), costing(3000, 600, 20),     // better in one: kept
                costing(1000, 1000, 30), costing(1001, 1001, 30)},  // equal: removed
               0.01);
  ASSERT_EQ(front.size(), 4u);
  EXPECT_EQ(front[0].what.memory, 1000u);
  EXPECT_EQ(front[1].what.memory, 1001u);  // so little more that it does not count
  EXPECT_EQ(front[2].what.memory, 2000u);
  EXPECT_EQ(front[3].what.memory, 3000u);
}

TEST(tune_front, ignores_differences_within_the_noise) {
  EXPECT_FALSE(beats(costing(1000, 100, 30), costing(1000, 100, 34), 0.2));
  EXPECT_TRUE(beats(costing(1000, 100, 30), costing(1000, 100, 34), 0.01));
  EXPECT_FALSE(beats(costing(1000, 100, 30), costing(1004, 100, 30), 0.01));
  EXPECT_TRUE(beats(costing(1000, 900, 90), costing(1006, 100, 30), 0.01));
  EXPECT_TRUE(beats(costing(1000, 100, 90), costing(1000, 110, 30), 0.01));
  EXPECT_FALSE(beats(costing(1000, 110, 30), costing(1000, 100, 90), 0.01));
  timed_candidate failing = costing(900, 10, 10);
  failing.what.completes = false;
  EXPECT_TRUE(beats(costing(1000, 100, 30), failing, 0.01));
}

class recorder {
 public:
  std::uint64_t allocate(std::size_t bytes, std::uint64_t stream = 0) {
    recorded_.events.push_back({kind::allocate, next_, bytes, stream_id{stream}});
    return next_++;
  }
  void free(std::uint64_t id) { recorded_.events.push_back({kind::free, id, 0, {}}); }
  [[nodiscard]] const trace::recording& recorded() const { return recorded_; }

 private:
  trace::recording recorded_{"made", {}};
  std::uint64_t next_ = 0;
};

/// Blocks of 60 MiB that stay live are each cut from a segment of 100 MiB that is idle at that moment.
trace::recording pinning() {
  recorder r;
  for (int i = 0; i < 8; ++i) {
    r.free(r.allocate(100_MiB));
    (void)r.allocate(60_MiB);
  }
  r.free(r.allocate(100_MiB));
  return r.recorded();
}

advice advise_on(const trace::recording& recording, advice_request asked) {
  const trace::program program(recording);
  asked.shipped = shipped();
  if (!asked.has_capacity) asked.capacity = 80_GiB;
  return advise(program, asked);
}

TEST(tune, reports_that_nothing_beats_pytorch) {
  recorder r;
  for (int i = 0; i < 2000; ++i) r.free(r.allocate(20_MiB));
  const advice given = advise_on(r.recorded(), {});
  EXPECT_FALSE(given.beats_pytorch);
  EXPECT_EQ(deviations(given.winner.what.made), 0u);
  EXPECT_TRUE(given.knobs.empty());
  EXPECT_EQ(given.winner.what.memory, 20_MiB);
}

TEST(tune, finds_a_recipe_whose_small_blocks_keep_no_large_segments) {
  const trace::recording recording = pinning();
  const trace::program program(recording);
  const std::size_t live = program.peak_live();
  composition limited;
  limited.split = split_below<>{.max = 64_MiB};
  const std::size_t pinned = replay_once(program, {}, 80_GiB).peak_reserved;
  const std::size_t with_limit = replay_once(program, limited, 80_GiB).peak_reserved;
  ASSERT_EQ(pinned, 900_MiB);
  ASSERT_EQ(with_limit, 580_MiB);

  const advice given = advise_on(recording, {});
  EXPECT_TRUE(given.beats_pytorch);
  EXPECT_EQ(given.pytorch.what.memory, pinned);
  EXPECT_LE(given.winner.what.memory, with_limit);
  EXPECT_LE(given.winner.what.memory, given.shipped.what.memory);
  EXPECT_GE(given.winner.what.memory, live);
  ASSERT_EQ(given.knobs.size(), deviations(given.winner.what.made));
  for (const knob& k : given.knobs) {
    const composition without = with_axis_of(given.winner.what.made, k.axis, {});
    EXPECT_EQ(k.without.what.memory, replay_once(program, without, 80_GiB).peak_reserved);
  }
  ASSERT_FALSE(given.front.empty());
  EXPECT_LE(given.front.front().what.memory, given.winner.what.memory);
}

TEST(tune, finds_a_recipe_for_a_capacity_with_which_pytorch_fails) {
  const trace::recording recording = pinning();
  const trace::program program(recording);
  const std::size_t capacity = 700_MiB;
  ASSERT_GT(replay_once(program, {}, capacity).failures, 0u);
  const advice given = advise_on(recording, {.capacity = capacity, .has_capacity = true});
  EXPECT_FALSE(given.pytorch.what.completes);
  ASSERT_TRUE(given.winner.what.completes);
  EXPECT_EQ(replay_once(program, given.winner.what.made, capacity).failures, 0u);
  EXPECT_EQ(replay_once(program, given.winner.what.made, given.winner.what.memory).failures, 0u);
  EXPECT_LE(given.winner.what.memory, given.shipped.what.memory);
}

TEST(tune, reports_that_nothing_completes) {
  const trace::recording recording = pinning();
  const trace::program program(recording);
  const advice given = advise_on(recording, {.capacity = program.peak_live() - 1, .has_capacity = true});
  EXPECT_FALSE(given.winner.what.completes);
  EXPECT_GE(given.winner.what.memory, program.peak_live());
}

TEST(tune, reports_that_nothing_is_fast_enough) {
  const advice given = advise_on(pinning(), {.max_ns = 0.001});
  EXPECT_FALSE(given.keeps_max_ns);
  EXPECT_TRUE(given.winner.what.completes);
}

TEST(tune, continues_if_no_caching_recipe_completes) {
  trace::recording recording = read("gnn_sage");
  recording.events.resize(recording.events.size() / tessera::by_day(16u, 4u));
  const trace::program program(recording);
  const std::size_t capacity = program.peak_live() + program.peak_live() / 500;
  std::uint64_t asking = 0;
  for (const auto& [name, made] : shipped()) {
    const auto done = replay_once(program, made, capacity);
    if (name == "passthrough") asking = done.device_ns;
    ASSERT_EQ(done.failures == 0, name == "passthrough") << name;
  }
  const advice given = advise_on(recording, {.capacity = capacity, .has_capacity = true});
  ASSERT_TRUE(given.winner.what.completes);
  EXPECT_GT(given.tried, 500u);
  EXPECT_LT(given.winner.what.device_ns, asking / 2);
  EXPECT_EQ(replay_once(program, given.winner.what.made, capacity).failures, 0u);
  EXPECT_FALSE(given.shipped.what.completes);  // and it is the closest
  EXPECT_LE(given.shipped.what.memory, given.pytorch.what.memory);
}

TEST(tune, keeps_the_host_limit_if_no_recipe_keeps_the_device_limit) {
  trace::recording recording = read("gnn_sage");
  recording.events.resize(recording.events.size() / tessera::by_day(32u, 4u));
  const trace::program program(recording);
  const std::size_t capacity = program.peak_live() + program.peak_live() / 500;
  const advice given =
      advise_on(recording, {.capacity = capacity, .has_capacity = true, .max_ns = 1'000'000});
  EXPECT_GT(given.winner.what.device_ns, given.device_limit_ns);
  // half the cost of requesting each block
  EXPECT_LT(given.winner.what.device_ns, 200 * given.device_limit_ns / 2);
  EXPECT_TRUE(given.keeps_max_ns);
  EXPECT_EQ(given.why, reason::least_device_time);
}

TEST(tune, measures_each_composition_once) {
  const advice given = advise_on(pinning(), {});
  const auto same = [&](const timed_candidate& r) {
    for (const timed_candidate& other : given.front) {
      if (other.what.made == r.what.made) {
        EXPECT_EQ(other.host_ns, r.host_ns);
      }
    }
  };
  int shown = 0;
  for (const timed_candidate& r : given.front) shown += r.what.made == given.winner.what.made;
  EXPECT_EQ(shown, 1);
  same(given.winner), same(given.shipped), same(given.pytorch);
}

TEST(tune, keeps_the_reported_limits) {
  const advice given = advise_on(pinning(), {.max_ns = 1'000'000});
  ASSERT_EQ(given.why, reason::least_memory);
  EXPECT_LE(given.winner.what.device_ns, given.device_limit_ns);
}

TEST(winner_selector, takes_the_least_memory_among_equally_fast_ones) {
  candidate large, small, slow;
  large.memory = 80_GiB, small.memory = 2_MiB, slow.memory = 512;
  const std::vector<const candidate*> some = {&large, &small, &slow};
  EXPECT_EQ(place_of_quickest(some, {100, 108, 130}, 0.1), 1u);
  EXPECT_EQ(place_of_quickest(some, {100, 108, 130}, 0.01), 0u);
  EXPECT_EQ(place_of_quickest(some, {100, 108, 130}, 0.5), 2u);
}

TEST(tune, needs_no_more_than_the_best_shipped_recipe) {
  for (const char* const name : {"gnn_sage_streams", "resnet50_sgd"}) {
    trace::recording recording = read(name);
    recording.events.resize(recording.events.size() / tessera::by_day(16u, 4u));
    const advice given = advise_on(recording, {});
    const trace::program program(recording);
    for (const auto& [recipe, made] : shipped()) {
      if (recipe == "passthrough" || needs_program_changes(made, {.several_streams = true})) continue;
      EXPECT_LE(given.winner.what.memory, replay_once(program, made, 80_GiB).peak_reserved)
          << name << ", " << recipe;
    }
    EXPECT_FALSE(needs_program_changes(given.winner.what.made, {.several_streams = true}));
    EXPECT_FALSE(given.left_out.empty());
  }
}

}  // namespace
