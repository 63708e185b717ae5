// SPDX-License-Identifier: Apache-2.0
// Any plan is safe with any program. Random programs are recorded and planned, and then run with deviations of
// every kind.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <type_traits>

#include <gtest/gtest.h>

#include <tessera/plan/planned.hpp>
#include <tessera/tessera.hpp>

#include "planned_model.hpp"

namespace {

using namespace tessera;
using conformance::watched_device;
using namespace conformance::plans;

template <typename Recipe, typename Provider = provider_ref<watched_device>>
struct over {
  using recipe = Recipe;
  using pool = planned<caching_allocator<Recipe, Provider>>;
};

plan::made_plan plan_of(const script& s, std::uint64_t seed) {
  dice d(seed);
  plan::make_options options{.seconds = 0.01};
  options.alignment = std::uint32_t{64} << d.pick(6);
  const trace::recording recorded = s.record();
  if (d.one_in(2)) return plan_of_each_stream(recorded, options);
  if (d.one_in(4)) {
    options.first_event = d.pick(recorded.events.size());
    options.end_event = options.first_event + d.pick(recorded.events.size());
  }
  return plan::make(recorded, options);
}

/// Runs the case of a seed: a program, a plan and deviations.
template <typename Case>
std::string run_seed(std::uint64_t seed, std::size_t operations, served& all) {
  using pool = typename Case::pool;
  const script program(seed);
  dice d(seed + 1);
  deviations how;
  how.none = d.one_in(8);
  how.has_scopes = d.one_in(3);
  if (!how.none) {
    const std::size_t capacities[] = {1_MiB, 8_MiB, 44_MiB, 160_MiB, 4_GiB};
    how.capacity = capacities[d.pick(std::size(capacities))];
    if (d.one_in(4)) how.fails = 2 + d.pick(30);
  }
  // Without deviations, the plan is the program's own.
  plan::made_plan made = !how.none && d.one_in(6) ? plan_of(script(seed + 2), seed) : plan_of(program, seed);
  if (const char* const fault = plan::find_fault(made.view()))
    return std::string("a plan has a fault: ") + fault;
  if (!how.none && d.one_in(2)) {
    for (int tries = 0; tries < 20; ++tries) {
      plan::made_plan changed = made;
      mutate(changed, d);
      if (plan::find_fault(changed.view()) == nullptr) made = std::move(changed);
    }
  }
  run_of<pool> run(program, made.view(), how, seed + 3);
  using policy = typename Case::recipe::streams;
  if constexpr (std::is_same_v<decltype(policy{}.reuse_key({})), stream_id::any>) run.ignore_owners();
  if constexpr (!policy::uses_events) run.ignore_streams();
  return run.run(operations, all);
}

template <typename Case>
class planned_programs : public testing::Test {};
using cases = testing::Types<over<pytorch<>>, over<pytorch_family::expandable>, over<stitched>,
                             over<power_of_two>, over<pytorch<>, segments_only>>;
TYPED_TEST_SUITE(planned_programs, cases);

TYPED_TEST(planned_programs, are_served_safely) {
  const std::size_t wanted = operations(40'000);
  const char* const said = std::getenv("TESSERA_SEED");
  served all;
  for (std::uint64_t seed = said != nullptr ? std::strtoull(said, nullptr, 10) : 1; all.operations < wanted;
       seed += 10)
    ASSERT_EQ(run_seed<TypeParam>(seed, 1000, all), "") << "seed " << seed;
  std::printf("%ju operations: %ju by plan, %ju not, %ju occupied, %ju failed, %ju refused plans\n",
              std::uintmax_t{all.operations}, std::uintmax_t{all.by_plan}, std::uintmax_t{all.unplanned},
              std::uintmax_t{all.occupied}, std::uintmax_t{all.failed}, std::uintmax_t{all.refused_plans});
  EXPECT_GT(all.by_plan, all.operations / 10);
  EXPECT_GT(all.occupied, 0u);
  EXPECT_GT(all.unplanned, 0u);
}

// Each call of a short run fails in turn. Afterwards everything still goes back to the device.
TYPED_TEST(planned_programs, survive_a_failure_of_any_call) {
  for (std::uint64_t seed : {3u, 8u, 21u}) {
    const script program(seed);
    const plan::made_plan made = plan_of(program, seed);
    deviations how;
    how.capacity = 24_MiB;
    for (std::uint64_t k = 1, made_calls = k; k <= made_calls; ++k) {
      run_of<typename TypeParam::pool> run(program, made.view(), how, seed);
      if constexpr (!TypeParam::recipe::streams::uses_events) run.ignore_streams();
      run.device().fail({{k, k}});
      run.play(300);
      made_calls = std::min<std::uint64_t>(run.device().made(), 400);
      run.device().fail({});
      served all;
      ASSERT_EQ(run.run(600, all), "") << "seed " << seed << " with call " << k << " failing";
    }
  }
}
// A call of the destructor fails. The rest is memory whose release failed, as in other allocators.
TYPED_TEST(planned_programs, leak_only_memory_whose_release_failed) {
  const script program(3);
  const plan::made_plan made = plan_of(program, 3);
  const deviations how;
  bool any_failed = true;
  for (std::uint64_t k = 1; any_failed; ++k) {
    run_of<typename TypeParam::pool> run(program, made.view(), how, 3);
    if constexpr (!TypeParam::recipe::streams::uses_events) run.ignore_streams();
    run.play(300);
    watched_device& device = run.device();
    device.fail({{k, k}});
    run.end();
    ASSERT_EQ(device.held().named + device.held().mapped, 0u) << "with call " << k << " failing";
    ASSERT_EQ(device.used(), device.segments_refused()) << "with call " << k << " failing";
    ASSERT_EQ(device.held().reserved, device.ranges_refused()) << "with call " << k << " failing";
    any_failed = device.calls().failed > 0;
  }
}

// The judge finds planted errors.

/// Forgets which streams use a block.
struct forgetful : over<pytorch<>>::pool {
  using over<pytorch<>>::pool::pool;
  bool record_stream(void*, stream_id) noexcept { return true; }
};
/// Serves some requests at the address of the latest block.
struct overlapping : over<pytorch<>>::pool {
  using base = over<pytorch<>>::pool;
  using base::base;
  void* try_allocate(std::size_t bytes, stream_id stream) noexcept {
    if (++calls % 100 == 0) return latest;
    return latest = base::try_allocate(bytes, stream);
  }
  std::size_t calls = 0;
  void* latest = nullptr;
};
/// Returns memory of the plan while it is in use.
struct hasty : over<pytorch<>>::pool {
  using base = over<pytorch<>>::pool;
  using base::base;
  void evict_idle() noexcept {
    watched_device& device = provider().inner();
    if (device.pieces().empty()) return;
    const watched_device::piece first = device.pieces().begin()->second;
    if (first.at != 0) (void)device.unmap(reinterpret_cast<void*>(first.at), first.bytes);
  }
};

/// Returns the first finding of the judge about an allocator with a planted error, of several runs.
template <typename Pool, typename Harm>
std::string first_finding(Harm harm) {
  for (std::uint64_t seed = 1; seed < 100; ++seed) {
    const script program(seed);
    plan::made_plan made = plan_of(program, seed);
    const deviations how;
    run_of<Pool> run(program, made.view(), how, seed + 3);
    harm(made);
    served all;
    if (const std::string found = run.run(2000, all); !found.empty())
      return found.substr(0, found.find(" at operation"));
  }
  return "nothing";
}
TEST(planned_judge, finds_planted_errors) {
  const auto nothing = [](plan::made_plan&) {};
  EXPECT_EQ(first_finding<over<pytorch<>>::pool>(nothing), "nothing");
  EXPECT_EQ(first_finding<forgetful>(nothing), "a block is reused that another stream still uses");
  EXPECT_EQ(first_finding<overlapping>(nothing), "a block overlaps one in use");
  const std::string hasty_finding = first_finding<hasty>(nothing);
  EXPECT_TRUE(hasty_finding == "the memory of a live block went back to the device" ||
              hasty_finding == "a block is not in memory that the device gave")
      << hasty_finding;
}
// The follower reads the deaths while it runs. If they lie, it gives out places that are in use.
TEST(planned_judge, finds_a_follower_that_compares_too_little) {
  const auto forget_deaths = [](plan::made_plan& made) {
    std::uint32_t begin = 0;
    for (std::uint32_t i = 0; i < made.entries.size(); ++i) {
      for (std::uint32_t d = begin; d < made.entries[i].deaths; ++d) made.deaths[d] = i;
      begin = made.entries[i].deaths;
    }
  };
  EXPECT_EQ(first_finding<over<pytorch<>>::pool>(forget_deaths), "a block overlaps one in use");
}

}  // namespace
