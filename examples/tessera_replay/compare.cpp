// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <tessera/observe/snapshot.hpp>
#include <tessera/plan/planned.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/trace/recording.hpp>

#include "commands.hpp"
#include "compare.hpp"
#include "input.hpp"
#include "plan.hpp"
#include "recipes.hpp"
#include "terminal.hpp"
#include "verify.hpp"

namespace {

/// Measures replays with a recipe, and with a plan unless it is null.
replay::recipe_result measure(const std::string& name, const tessera::trace::program& program,
                              const replay::any_recipe& recipe, std::size_t capacity,
                              const tessera::plan::memory_plan* plan = nullptr) {
  replay::recipe_result found{.recipe = name};
  std::array<double, 3> times{};
  for (double& time : times) {
    replay::simulated_allocator pool = recipe.make(replay::device_of(capacity), {.plan = plan});
    const auto begin = std::chrono::steady_clock::now();
    found.failed_sleeps = 0;
    found.failures = tessera::trace::replay(
        program, pool, [](std::size_t) {},
        [&found]<typename Outcome>([[maybe_unused]] std::size_t i, [[maybe_unused]] Outcome outcome) {
          if constexpr (std::is_same_v<Outcome, tessera::trace::pool_outcome>) {
            if (outcome.why != nullptr && found.failed_sleeps++ == 0) found.why = outcome.why;
          }
        });
    time = std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin).count();
    const auto counted = pool.statistics();
    found.peak_reserved = pool.provider().peak_used();
    found.cached_at_end = pool.current_usage().cached;
    found.calls = pool.provider().calls();
    found.retries = counted.num_alloc_retries;
    found.by_plan = counted.by_plan;
    found.has_plan = plan != nullptr;
  }
  std::sort(times.begin(), times.end());
  found.nanoseconds = times[1] / static_cast<double>(std::max<std::size_t>(1, program.events().size()));
  return found;
}

/// Whether a recipe and its settings are those of the recorded run.
bool is_recorded(const replay::any_recipe& recipe, const replay::recorded_run& run,
                 const replay::recipe_list& known) {
  const auto recorded = known.choose(run.by_2_14() ? "pytorch_2_14" : "pytorch", run.conf, {});
  const auto* const found = std::get_if<replay::any_recipe>(&recorded);
  return found != nullptr && *found == recipe;
}

/// Overwrites a result with that of a recorded run.
void take_recorded(replay::recipe_result& to, const replay::recorded_run& from) {
  const replay::verification& made = from.outcome;
  to.as_recorded = true;
  to.peak_reserved = made.peak_here;
  to.cached_at_end = made.cached_at_end;
  to.calls = {};
  to.calls.acquire = made.calls.acquire;
  to.calls.release = made.calls.release;
  to.calls.create = made.calls.create;
  to.calls.destroy = made.calls.destroy;
  to.calls.map = made.calls.map;
  to.calls.unmap = made.calls.unmap;
  to.retries = 0;
  to.failures = from.failures;
}

}  // namespace

std::vector<replay::named_recipe> replay::named_recipes(const arguments& args,
                                                        const std::vector<std::string>& defaults) {
  std::vector<named_recipe> recipes;
  if (!args.conf.empty()) recipes.push_back({args.recipe, args.conf, args.recipe + ", with --conf"});
  for (const std::string& name : args.recipes.empty() ? defaults : args.recipes) {
    const auto same = [&](const named_recipe& w) { return w.name == name; };
    if (std::none_of(recipes.begin(), recipes.end(), same)) recipes.push_back({name, "", name});
  }
  return recipes;
}

std::string replay::failed_sleeps_text(const recipe_result& r, std::size_t sleeps) {
  return r.recipe + ": " + std::to_string(r.failed_sleeps) + " of " + std::to_string(sleeps) +
         " sleeps and wakes changed nothing, the first because " + r.why;
}

std::vector<replay::named_recipe> replay::add_compared_recipes(std::vector<named_recipe> recipes,
                                                               const recipe_list& known) {
  for (const std::string& name : known.compared()) {
    if (std::none_of(recipes.begin(), recipes.end(), [&](const named_recipe& w) { return w.name == name; }))
      recipes.push_back({name, "", name});
  }
  return recipes;
}

replay::read_result<replay::recorded_run> replay::run_as_recorded(const tessera::observe::snapshot& source,
                                                                  std::size_t device) {
  using action = tessera::observe::snapshot::action;
  auto outcome = replay::verifier(source, device).run();
  const auto* const made = std::get_if<replay::verification>(&outcome);
  if (made == nullptr) return std::get<tessera::trace::input_error>(outcome);
  const auto entries = source.trace_of(device);
  const auto failures =
      std::count_if(entries.begin(), entries.end(), [](const auto& e) { return e.what == action::oom; });
  return recorded_run{replay::settings_of(source), source.configured.conf, *made,
                      static_cast<std::size_t>(failures)};
}

std::variant<std::vector<replay::recipe_result>, std::string> replay::measure_recipes(
    const std::vector<named_recipe>& recipes, const tessera::trace::program& program, const arguments& args,
    steps& at, const std::string& task, const recorded_run* recorded,
    const tessera::plan::memory_plan* plan) {
  std::vector<recipe_result> results;
  for (const named_recipe& w : recipes) {
    at.next(task + ": " + w.name);
    const recipe_or_error chosen = args.known->choose(w.recipe, w.conf, args.memory_fraction);
    if (const auto* const wrong = std::get_if<std::string>(&chosen)) return *wrong;
    const auto& recipe = std::get<any_recipe>(chosen);
    results.push_back(measure(w.name, program, recipe, args.capacity));
    if (recorded != nullptr && is_recorded(recipe, *recorded, *args.known))
      take_recorded(results.back(), *recorded);
  }
  if (plan != nullptr) {
    const std::string name = "plan, " + args.recipe;
    at.next(task + ": " + name);
    const recipe_or_error chosen = args.known->choose(args.recipe, args.conf, args.memory_fraction);
    if (const auto* const wrong = std::get_if<std::string>(&chosen)) return *wrong;
    const auto& recipe = std::get<any_recipe>(chosen);
    const std::size_t alone = measure(args.recipe, program, recipe, args.capacity).peak_reserved;
    results.push_back(measure(name, program, recipe, args.capacity, plan));
    recipe_result& last = results.back();
    last.warning = plan_warning(last.by_plan, last.peak_reserved, alone);
  }
  if (recorded != nullptr &&
      std::none_of(results.begin(), results.end(), [](const recipe_result& r) { return r.as_recorded; })) {
    recipe_result added{.recipe = recorded->by_2_14() ? "pytorch_2_14" : "pytorch"};
    if (recorded->settings.expandable_segments) added.recipe += "_expandable";
    take_recorded(added, *recorded);
    results.insert(results.begin(), added);
  }
  return results;
}

namespace {

using replay::failed_sleeps_text;
using replay::mib;
using replay::ratio;
using replay::read_result;
using replay::recipe_result;
using replay::recorded_run;
using tessera::trace::input_error;

/// The recorded run, or null.
const recorded_run* run_in(const std::optional<read_result<recorded_run>>& recorded) {
  return recorded ? std::get_if<recorded_run>(&*recorded) : nullptr;
}
const input_error* reason_in(const std::optional<read_result<recorded_run>>& recorded) {
  return recorded ? std::get_if<input_error>(&*recorded) : nullptr;
}

void print(const std::string& title, const tessera::trace::program& program,
           const std::vector<recipe_result>& results,
           const std::optional<read_result<recorded_run>>& recorded) {
  std::printf("%s: %zu operations\n", title.c_str(), program.events().size());
  std::printf("  %-20s %18s %11s %11s %8s %8s %7s %7s %7s %7s %7s %8s %6s\n", "recipe", "peak reserved, MiB",
              "/ peak live", "cached, MiB", "acquire", "release", "create", "destroy", "map", "unmap",
              "retries", "failures", "ns/op");
  for (const recipe_result& r : results) {
    std::printf("  %-20s %18.1f %11.3f %11.1f %8ju %8ju %7ju %7ju %7ju %7ju %7ju %8zu %6.1f\n",
                (r.recipe + (r.as_recorded ? " *" : "")).c_str(), mib(r.peak_reserved),
                ratio(r.peak_reserved, program.peak_live()), mib(r.cached_at_end), r.calls.acquire,
                r.calls.release, r.calls.create, r.calls.destroy, r.calls.map, r.calls.unmap, r.retries,
                r.failures, r.nanoseconds);
  }
  std::printf("  %-20s %18.1f %11.3f\n", "(peak live)", mib(program.peak_live()), 1.0);
  for (const recipe_result& r : results) {
    if (r.has_plan) std::printf("  %s: %s\n", r.recipe.c_str(), replay::served_text(r.by_plan).c_str());
    if (!r.warning.empty()) std::printf("  warning: %s\n", r.warning.c_str());
    if (r.failed_sleeps != 0) std::printf("  %s\n", failed_sleeps_text(r, program.sleeps()).c_str());
  }
  if (const recorded_run* const run = run_in(recorded)) {
    const replay::verification& made = run->outcome;
    std::printf(
        "  * as recorded%s: starts with the history's first state, %.1f MiB cached, and releases memory\n"
        "    where the GPU did; the GPU's peak reserved was %.1f MiB%s\n",
        run->conf.empty() ? "" : (", " + run->conf).c_str(), mib(made.cached_at_start),
        mib(made.peak_recorded), made.agrees() ? "" : "; decisions differ from the GPU's: see verify");
  }
  if (const input_error* const why = reason_in(recorded))
    std::printf("  no result as recorded: %s\n", why->text().c_str());
  std::puts("");
}

void print_json(const tessera::trace::program& program, const std::vector<recipe_result>& results,
                const std::optional<read_result<recorded_run>>& recorded) {
  std::printf("{\"trace\": \"%s\", \"operations\": %zu, \"peak_live\": %zu, ",
              replay::json_text(program.name()).c_str(), program.events().size(), program.peak_live());
  if (const recorded_run* const run = run_in(recorded)) {
    const replay::verification& made = run->outcome;
    std::printf(
        "\"device\": %zu, \"conf\": \"%s\", \"peak_recorded\": %zu, \"cached_at_start\": %zu, \"agrees\": "
        "%s, ",
        made.device, replay::json_text(run->conf).c_str(), made.peak_recorded, made.cached_at_start,
        made.agrees() ? "true" : "false");
  }
  if (const input_error* const why = reason_in(recorded))
    std::printf("\"not_as_recorded\": \"%s\", ", replay::json_text(why->text()).c_str());
  std::printf("\"recipes\": [");
  for (const recipe_result& r : results) {
    std::printf(
        "%s\n  {\"recipe\": \"%s\", \"peak_reserved\": %zu, \"over_peak_live\": %.6f, \"cached_at_end\": "
        "%zu, \"acquire\": %ju, \"release\": %ju, \"create\": %ju, \"destroy\": %ju, \"map\": %ju, "
        "\"unmap\": %ju, "
        "\"retries\": %ju, \"failures\": %zu, \"failed_sleeps\": %zu, \"host_ns_per_operation\": %.1f%s%s}",
        &r == results.data() ? "" : ",", replay::json_text(r.recipe).c_str(), r.peak_reserved,
        ratio(r.peak_reserved, program.peak_live()), r.cached_at_end, r.calls.acquire, r.calls.release,
        r.calls.create, r.calls.destroy, r.calls.map, r.calls.unmap, r.retries, r.failures, r.failed_sleeps,
        r.nanoseconds, r.as_recorded ? ", \"as_recorded\": true" : "",
        r.has_plan ? replay::plan_json(r.by_plan, r.warning).c_str() : "");
  }
  std::printf("]}");
}

}  // namespace

int replay::commands::compare(const arguments& args) {
  const std::vector<named_recipe> recipes = add_compared_recipes(named_recipes(args, {}), *args.known);
  const auto read_of_plan = read_plan(args);
  if (const auto* const wrong = std::get_if<input_error>(&read_of_plan)) return print_error(wrong->text());
  const auto& plan = std::get<std::optional<tessera::plan::made_plan>>(read_of_plan);
  const tessera::plan::memory_plan view = plan ? plan->view() : tessera::plan::memory_plan{};
  steps at(args.files.size() * (recipes.size() + (plan ? 1 : 0)));
  json_list list(args.json);
  int code = done;
  const auto refuse = [&](const std::string& file, const std::string& wrong) {
    progress_line::clear();
    code = print_error(wrong);
    list.add_error("trace", title_of(file), wrong);
  };
  for (const std::string& file : args.files) {
    const auto read = read_traces(file, args.device);
    if (const auto* const wrong = std::get_if<input_error>(&read)) {
      refuse(file, wrong->text());
      continue;
    }
    const auto& found = std::get<traces>(read);
    for (std::size_t i = 0; i < found.each.size(); ++i) {
      if (const auto* const wrong = std::get_if<input_error>(&found.each[i])) {
        refuse(file, wrong->text());
        continue;
      }
      const tessera::trace::program program(std::get<tessera::trace::recording>(found.each[i]));
      std::optional<read_result<recorded_run>> recorded;
      if (found.source) recorded = run_as_recorded(*found.source, found.devices[i]);
      const auto results = measure_recipes(recipes, program, args, at, program.name(), run_in(recorded),
                                           plan ? &view : nullptr);
      if (const auto* const wrong = std::get_if<std::string>(&results)) {
        refuse(file, *wrong);
        continue;
      }
      progress_line::clear();
      list.next();
      const auto& shown = std::get<std::vector<recipe_result>>(results);
      const std::string title = program.name() + fraction_text(args, ", --memory-fraction ");
      args.json ? print_json(program, shown, recorded) : print(title, program, shown, recorded);
    }
  }
  return code;
}
