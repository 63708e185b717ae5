// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/observe/explain.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>
#include <tessera/trace/csv.hpp>
#include <tessera/trace/recording.hpp>
#include "tessera_replay/lifetimes.hpp"

// Tests the advice of a report: runs the same program on the same device with the changed recipe.
namespace {

using namespace tessera;

struct failure {
  std::size_t at;  // event
  oom_report told;
};

/// The first failure of a program, or nothing.
template <typename Recipe>
std::optional<failure> first_failure(const trace::program& source, std::size_t capacity) {
  caching_allocator<Recipe, simulated_device> pool{
      simulated_device{simulated_device::options{.capacity = capacity}}};
  std::optional<failure> found;
  const auto after = [&](std::size_t i, void* p) {
    const trace::event& e = source.events()[i];
    if (p != nullptr || e.what != trace::event::kind::allocate || found) return;
    found = failure{i, explain(pool, e.bytes, e.stream)};
  };
  (void)trace::replay(source, pool, [](std::size_t) {}, after);
  return found;
}

struct tally {
  int advised = 0;
  int served = 0;  // the request that failed
};

template <typename Changed>
void try_out(tally& count, oom_report::hint what, const failure& here, const trace::program& source,
             std::size_t capacity) {
  for (std::size_t i = 0; i < here.told.hint_count; ++i) {
    if (here.told.hints[i].what != what) continue;
    const std::optional<failure> other = first_failure<Changed>(source, capacity);
    ++count.advised;
    count.served += !other || other->at > here.at;
  }
}

struct tallies {
  tally in_place, stitched, exactly, rounding;
};

template <typename Recipe>
void try_all(tallies& count, const trace::program& source) {
  for (const std::size_t percent_more : {1u, 3u, 6u, 10u, 15u}) {
    const std::size_t capacity = source.peak_live() / 100 * (100 + percent_more);
    const auto here = first_failure<Recipe>(source, capacity);
    if (!here) continue;
    using growth = typename Recipe::growth;
    if constexpr (!growth::backend::has_ranges) {
      try_out<with<Recipe, grow_by_mapping<>>>(count.in_place, oom_report::hint::map_pages, *here, source,
                                               capacity);
      try_out<with<Recipe, recover_by_emptying_cache<true>>>(count.exactly, oom_report::hint::grow_exactly,
                                                             *here, source, capacity);
    }
    try_out<with<Recipe, grow_by_stitching<>>>(count.stitched, oom_report::hint::stitch, *here, source,
                                               capacity);
    try_out<with<Recipe, round_to_multiple<512>>>(count.rounding, oom_report::hint::round_less, *here, source,
                                                  capacity);
  }
}

TEST(advice_on_recorded_programs, usually_serves_the_failed_request) {
  tallies count;
  for (const char* const name : {"gnn_sage", "gpt2_adamw", "resnet50_sgd"}) {
    const std::string path = std::string(TESSERA_TESTS_DIR) + "/../examples/traces/" + name + ".csv";
    const auto text = replay::read_file(path);
    ASSERT_TRUE(std::holds_alternative<std::string>(text)) << path;
    const auto read = replay::read_text_trace(std::get<std::string>(text), name);
    ASSERT_TRUE(std::holds_alternative<trace::recording>(read)) << path;
    const trace::program source(std::get<trace::recording>(read));
    try_all<pytorch<>>(count, source);
    try_all<pytorch_family::expandable>(count, source);
    try_all<paddle_family::auto_growth>(count, source);
    try_all<pinned_packed>(count, source);
    try_all<power_of_two>(count, source);
  }
  const auto expect = [](const char* what, const tally& t, int least) {
    EXPECT_GE(t.advised, least) << what << " is hardly ever advised";
    EXPECT_GE(t.served * 10, t.advised * 9)
        << what << " was advised " << t.advised << " times and served " << t.served;
  };
  expect("grow_by_mapping", count.in_place, 8);
  expect("grow_by_stitching", count.stitched, 20);
  expect("recover_by_emptying_cache<true>", count.exactly, 3);
  expect("round_to_multiple<512>", count.rounding, 5);
}

}  // namespace
