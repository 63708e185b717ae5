// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <tessera/core/bytes.hpp>
#include <tessera/plan/memory_plan.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tool/any_recipe.hpp>
#include <tessera/trace/recording.hpp>

#include "capacity.hpp"
#include "commands.hpp"
#include "input.hpp"
#include "planner/make_plan.hpp"
#include "recipes.hpp"
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
  const tessera::plan::memory_plan view = made.view();
  const auto pytorch = std::get<any_recipe>(recipe_list().choose("pytorch", "", {}));
  simulated_allocator pool = pytorch.make(replay::device_of(capacity), {.plan = &view});
  tune::planned_run run;
  run.failures = tessera::trace::replay(program, pool);
  run.plan_bytes = made.numbers.bytes;
  run.peak_reserved = pool.provider().peak_used();
  run.calls = memory_calls(pool.provider().calls());
  run.unplanned = pool.statistics().by_plan.unplanned_requests;
  return run;
}

/// Says which axis keeps a recipe out of the search.
void print_untried(const std::string& name, const any_recipe& recipe) {
  if (const char* const axis = recipe.axis_out_of_search())
    print_message("tune: " + name + " is not tried: its " + axis + " policy cannot be chosen at run time");
}

/// The recipes with a name that can be compositions: pytorch, then those that compare shows, then those of pinned memory.
std::vector<std::pair<std::string, tune::composition>> named_compositions(const recipe_list& known) {
  std::vector<std::string> names = {"pytorch"};
  for (const std::string& name : known.compared()) {
    if (name != "pytorch") names.push_back(name);
  }
  for (const char* const name : {"pinned", "pinned_expandable", "pinned_packed"}) names.push_back(name);
  std::vector<std::pair<std::string, tune::composition>> all;
  for (const std::string& name : names) {
    const auto recipe = std::get<any_recipe>(known.choose(name, "", {}));
    const auto made = recipe.composed();
    if (made) all.emplace_back(name, *made);
    const recipe_entry* const entry = known.find(name);
    if (!made && !entry->is_own) print_untried(name, recipe);
  }
  return all;
}

/// Adds the policies of the program that calls tool::run. Says which of its recipes cannot be tried.
void add_own_policies(tune::own_policies& to, const recipe_list& known) {
  for (const recipe_entry* own : known.own()) {
    own->add_policies(to);
    const auto chosen = known.choose(own->name, "", {});
    print_untried(own->name, std::get<any_recipe>(chosen));
  }
}

/// Says that live tensors alone need more than the capacity.
void print_impossible(const arguments& args, const tessera::trace::program& program, const run_settings& used,
                      std::size_t capacity) {
  const std::string reason = (program.sleeps() == 0 ? "peak live is " : "the largest request has ") +
                             counted(program.min_reserved(), "byte") + ", so nothing completes with " +
                             std::to_string(capacity);
  if (args.json) {
    std::printf(
        "{\"trace\": \"%s\", \"operations\": %zu, \"peak_live\": %zu, \"capacity\": %zu, %s, \"winner\": "
        "null, "
        "\"reason\": \"%s\"}\n",
        json_text(program.name()).c_str(), program.events().size(), program.peak_live(), capacity,
        settings_json(used).c_str(), json_text(reason).c_str());
    return;
  }
  std::printf("%s: %s\n  used: %s\n", program.name().c_str(), reason.c_str(), settings_text(used).c_str());
}

int tune_one(const arguments& args, const run_trace& trace, const run_settings& used) {
  const tessera::trace::program program(trace.made);
  const double share = used.memory_fraction.value_or(1);
  const bool has_capacity = used.knows_capacity() || share < 1;
  const auto capacity =
      (std::min)(used.limit, static_cast<std::size_t>(share * static_cast<double>(used.capacity)));
  if (has_capacity && capacity < program.min_reserved()) {
    print_impossible(args, program, used, capacity);
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
  asked.shipped = named_compositions(*used.known);
  add_own_policies(asked.own, *used.known);
  for (const recipe_entry* own : used.known->own()) asked.own_names.push_back(own->name);
  if (used.recipe_from == setting_source::recorded) {
    const recipe_or_error recorded = used.known->choose(used.recipe, used.conf, {});
    const auto* const recipe = std::get_if<any_recipe>(&recorded);
    const auto made = recipe != nullptr ? recipe->composed() : std::nullopt;
    if (made) {
      asked.recorded.emplace(used.recipe + (used.conf.empty() ? "" : ", " + used.conf), *made);
      const auto is_it = [&](const auto& named) { return named.second == *made; };
      if (std::none_of(asked.shipped.begin(), asked.shipped.end(), is_it))
        asked.shipped.emplace_back(used.recipe + ", recorded settings", *made);
    }
  }
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
      std::printf("%s failed in the recorded run and need not be served here\n",
                  counted(program.refusals(), "request").c_str());
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
