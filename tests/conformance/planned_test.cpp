// SPDX-License-Identifier: Apache-2.0
// Any plan is safe with any program. Random programs are recorded and planned, and then run with deviations of
// every kind.
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
  if (d.one_in(4)) {
    options.first_event = d.pick(recorded.events.size());
    options.end_event = options.first_event + d.pick(recorded.events.size());
  }
  return plan::make(recorded, options);
}

/// What a seed stands for: a program, a plan and deviations.
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

}  // namespace
