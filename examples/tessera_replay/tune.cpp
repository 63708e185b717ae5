// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <optional>
#include <string>
#include <type_traits>

#include <tessera/core/bytes.hpp>
#include <tessera/plan/planned.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/recipe/pytorch.hpp>
#include <tessera/trace/recording.hpp>

#include "capacity.hpp"
#include "commands.hpp"
#include "input.hpp"
#include "planner/make_plan.hpp"
#include "recipes.hpp"
#include "replayed.hpp"
#include "terminal.hpp"
#include "tune_advice.hpp"

namespace {

using namespace replay;

/// Replays a program with a plan of itself. Returns nothing if no request can be planned.
std::optional<tune::planned_run> run_planned(const tessera::trace::program& program, std::size_t capacity) {
  tessera::plan::make_options options;
  options.effort = 3;
  const tessera::plan::made_plan made = tessera::plan::make(program.source(), options);
  if (made.entries.empty()) return {};
  tessera::plan::planned<replay::replayed<tessera::recipe::pytorch<>>> pool{made.view(),
                                                                            replay::device_of(capacity)};
  tune::planned_run run;
  run.failures = tessera::trace::replay(program, pool);
  run.plan_bytes = made.numbers.bytes;
  run.peak_reserved = pool.provider().peak_used();
  run.calls = memory_calls(pool.provider().calls());
  run.unplanned = pool.statistics().by_plan.unplanned_requests;
  return run;
}

int tune_one(const arguments& args, const run_trace& trace, const run_settings& used) {
  const tessera::trace::program program(trace.made);
  const double share = used.memory_fraction.value_or(1);
  const bool has_capacity = used.knows_capacity() || share < 1;
  const auto capacity =
      (std::min)(used.limit, static_cast<std::size_t>(share * static_cast<double>(used.capacity)));
  if (has_capacity && capacity < program.min_reserved()) {
    print_error(args.files[0] + (program.sleeps() == 0 ? ": peak live is " : ": the largest request has ") +
                std::to_string(program.min_reserved()) + " bytes, so nothing completes with " +
                std::to_string(capacity));
    return differs;
  }

  tune::advice_request asked{.capacity = capacity,
                             .has_capacity = has_capacity,
                             .max_ns = static_cast<double>(args.max_ns),
                             .shipped = {},
                             .progress = {}};
  // Without --capacity, the device never runs out of memory.
  constexpr std::size_t max_peak = tessera::max_request / 8;
  if (!has_capacity) asked.capacity = std::max(capacity, 8 * std::min(program.peak_live(), max_peak));
  const auto add = [&](const std::string& name, const std::string& recipe, const std::string& conf) {
    (void)choose_recipe(
        recipe, conf, {}, [&]<typename Recipe>(const tessera::recipe::policies<Recipe>& settings) {
          if constexpr (std::is_constructible_v<tune::composition, const tessera::recipe::policies<Recipe>&>)
            asked.shipped.emplace_back(name, tune::composition(settings));
        });
  };
  for (const char* const name : compared) add(name, name, "");
  for (const char* const name : {"pinned", "pinned_expandable", "pinned_packed"}) add(name, name, "");
  if (!used.conf.empty() && used.conf != "expandable_segments:True")
    add(used.recipe + ", recorded settings", used.recipe, used.conf);
  const std::string& title = program.name();
  asked.progress = [&](const std::string& what) { progress_line::show(title + ": " + what); };

  const tune::advice given = tune::advise(program, asked);
  progress_line::show(title + ": a plan");
  const std::optional<tune::planned_run> planned = run_planned(program, asked.capacity);
  progress_line::clear();
  const tune::report found{title, program, asked, given, planned, settings_json(used)};
  if (args.json) {
    tune::print_json(found);
  } else {
    // The C++ comes last.
    std::printf("%s, used: %s\n", title.c_str(), settings_text(used).c_str());
    if (program.refusals() != 0)
      std::printf("%zu of the requests failed in the recorded run; they need not be served here\n",
                  program.refusals());
    tune::print(found);
  }
  return given.winner.what.completes && given.keeps_max_ns ? done : differs;
}

}  // namespace

int replay::commands::tune(const arguments& args) {
  return with_each_trace(args, [&](const run_trace& trace, const run_settings& used, const traces&) {
    return tune_one(args, trace, used);
  });
}
