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
#include <tessera/plan/memory_plan.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/trace/recording.hpp>

#include "commands.hpp"
#include "compare.hpp"
#include "input.hpp"
#include "plan.hpp"
#include "recipes.hpp"
#include "terminal.hpp"
#include "verification.hpp"

namespace {

/// Measures replays with a recipe, and with a plan unless it is null. Then replays `addresses` times with random addresses.
replay::recipe_result measure(const std::string& name, const tessera::trace::program& program,
                              const replay::any_recipe& recipe, std::size_t capacity, std::size_t addresses,
                              const tessera::plan::memory_plan* plan = nullptr) {
  replay::recipe_result found{.recipe = name};
  std::array<double, 3> times{};
  for (double& time : times) {
    replay::simulated_allocator pool = recipe.make(replay::device_of(capacity), {.plan = plan});
    const auto begin = std::chrono::steady_clock::now();
    found.failed_sleeps = 0;
    std::size_t refused = 0;
    found.failures = tessera::trace::replay(
        program, pool, [](std::size_t) {},
        [&]<typename Outcome>([[maybe_unused]] std::size_t i, [[maybe_unused]] Outcome outcome) {
          if constexpr (std::is_pointer_v<Outcome>)
            refused += outcome == nullptr && program.events()[i].what == tessera::trace::event::kind::refused;
          if constexpr (std::is_same_v<Outcome, tessera::trace::pool_outcome>) {
            if (outcome.why != nullptr && found.failed_sleeps++ == 0) found.why = outcome.why;
          }
        });
    found.failures += refused;
    time = std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin).count();
    const auto counted = pool.statistics();
    found.peak_reserved = pool.provider().peak_used();
    found.cached_at_end = pool.current_usage().cached;
    found.calls = pool.provider().calls();
    found.retries = counted.num_alloc_retries;
    found.by_plan = counted.by_plan;
    found.has_plan = plan != nullptr;
  }
  for (std::size_t seed = 1; seed <= addresses; ++seed) {
    replay::simulated_allocator pool = recipe.make(replay::device_of(capacity, seed), {.plan = plan});
    (void)tessera::trace::replay(program, pool);
    const std::size_t peak = pool.provider().peak_used();
    found.least_peak = seed == 1 ? peak : std::min(found.least_peak, peak);
    found.largest_peak = std::max(found.largest_peak, peak);
  }
  std::sort(times.begin(), times.end());
  found.nanoseconds = times[1] / static_cast<double>(std::max<std::size_t>(1, program.events().size()));
  return found;
}

}  // namespace

std::vector<replay::named_recipe> replay::named_recipes(const arguments& args, const run_settings& used,
                                                        const std::vector<std::string>& defaults) {
  std::vector<named_recipe> recipes;
  if (args.has_conf && !args.conf.empty())
    recipes.push_back({used.recipe, args.conf, used.recipe + ", with --conf"});
  for (const std::string& name : args.recipes.empty() ? defaults : args.recipes) {
    const auto same = [&](const named_recipe& w) { return w.name == name; };
    if (std::none_of(recipes.begin(), recipes.end(), same)) recipes.push_back({name, "", name});
  }
  return recipes;
}

namespace {

constexpr const char* takes_a_share = "paddle_naive_best_fit";

/// Whether a recipe has these settings by default, under its own name.
bool has_own_name(const replay::run_settings& used) {
  return used.conf.empty() || (used.recipe == "pytorch" && used.conf == "expandable_segments:True");
}

}  // namespace

std::vector<replay::named_recipe> replay::add_compared_recipes(std::vector<named_recipe> recipes,
                                                               const run_settings& used) {
  const auto has = [&](const std::string& name) {
    return std::any_of(recipes.begin(), recipes.end(), [&](const named_recipe& w) { return w.name == name; });
  };
  if (used.conf_from == setting_source::recorded && !has_own_name(used))
    recipes.push_back({used.recipe, used.conf, used.recipe + ", recorded conf"});
  if (used.recipe_from == setting_source::recorded && used.conf.empty() && !has(used.recipe))
    recipes.push_back({used.recipe, "", used.recipe});
  for (const std::string& name : used.known->compared()) {
    if (!used.knows_capacity() && name == takes_a_share) continue;
    if (!has(name)) recipes.push_back({name, "", name});
  }
  return recipes;
}

std::string replay::left_out_text(const std::vector<named_recipe>& recipes, const run_settings& used) {
  const auto is_it = [](const named_recipe& w) { return w.name == takes_a_share; };
  if (used.knows_capacity() || std::any_of(recipes.begin(), recipes.end(), is_it)) return {};
  return std::string(takes_a_share) +
         " is left out: it reserves a share of the device, whose capacity the trace does not say; set "
         "--capacity";
}

std::string replay::leave_out_unlimited(std::vector<named_recipe>& recipes, const run_settings& used,
                                        const arguments& args) {
  if (!used.memory_fraction && used.limit == tessera::unlimited) return {};
  const auto is_valid = [&](const run_settings& with) {
    return std::holds_alternative<any_recipe>(choose_recipe(with));
  };
  std::vector<std::string> names;
  std::erase_if(recipes, [&](const named_recipe& w) {
    const bool is_asked = std::find(args.recipes.begin(), args.recipes.end(), w.recipe) != args.recipes.end();
    run_settings with = used.with(w.recipe, w.conf);
    if ((used.memory_fraction && is_asked) || is_valid(with)) return false;
    with.memory_fraction.reset();
    with.limit = tessera::unlimited;
    if (!is_valid(with)) return false;  // it has another error
    names.push_back(w.name);
    return true;
  });
  if (names.empty()) return {};
  return listed(names) + (names.size() == 1 ? " is" : " are") +
         " left out: no limit can be set in the growth policy, which " +
         (used.memory_fraction ? "--memory-fraction needs" : "the recorded memory fraction needs");
}

std::string replay::failed_sleeps_text(const recipe_result& r, std::size_t sleeps) {
  return r.recipe + ": " + std::to_string(r.failed_sleeps) + " of " + std::to_string(sleeps) +
         (sleeps == 1 ? " sleeps or wakes" : " sleeps and wakes") + " changed nothing, the first because " +
         r.why;
}

replay::read_result<replay::recorded_run> replay::find_recorded_run(const tessera::observe::snapshot& source,
                                                                    const run_trace& trace) {
  using action = tessera::observe::snapshot::action;
  recorded_run run;
  run.conf = trace.known.conf;
  tessera::provider::simulated_device::counts& calls = run.did.calls;
  std::size_t reserved = 0, active = 0;
  for (const auto& s : source.segments_of(trace.device)) {
    reserved += s.size;
    active += s.count_bytes().active;
  }
  run.did.cached_at_end = reserved - active;
  const auto entries = source.trace_of(trace.device);
  std::size_t peak = reserved;
  for (std::size_t i = entries.size(); i-- > 0;) {
    const auto& e = entries[i];
    const bool grows = e.what == action::segment_alloc || e.what == action::segment_map;
    const bool shrinks = e.what == action::segment_free || e.what == action::segment_unmap;
    if (grows && e.size > reserved)
      return tessera::trace::input_error{
          source.name + ": device " + std::to_string(trace.device),
          "entry " + std::to_string(i) + ": acquires more than is reserved afterwards"};
    reserved = grows ? reserved - e.size : shrinks ? reserved + e.size : reserved;
    peak = std::max(peak, reserved);
    calls.acquire += e.what == action::segment_alloc;
    calls.release += e.what == action::segment_free;
    calls.map += e.what == action::segment_map;
    calls.unmap += e.what == action::segment_unmap;
    run.did.failures += e.what == action::oom;
  }
  run.did.peak_reserved = peak;
  std::size_t live = 0;
  for (std::size_t i = 0; i < trace.events_at_start; ++i) live += trace.made.events[i].bytes;
  run.cached_at_start = reserved > live ? reserved - live : 0;
  if (!trace.verified) return run;
  const auto* const made = std::get_if<verification>(&*trace.verified);
  if (made == nullptr) {
    const bool is_pytorch = trace.known.recipe.starts_with("pytorch");
    if (is_pytorch) return std::get<tessera::trace::input_error>(*trace.verified);
    return run;
  }
  run.cached_at_start = made->cached_at_start;
  if (made->has_compared()) run.agrees = made->agrees();
  if (!made->agrees()) return run;
  // The history does not count the calls for pages.
  calls.acquire = made->calls.acquire;
  calls.release = made->calls.release;
  calls.create = made->calls.create;
  calls.destroy = made->calls.destroy;
  calls.map = made->calls.map;
  calls.unmap = made->calls.unmap;
  return run;
}

std::variant<std::vector<replay::recipe_result>, std::string> replay::measure_recipes(
    const std::vector<named_recipe>& recipes, const tessera::trace::program& program,
    const run_settings& used, steps& at, const std::string& task, const tessera::plan::memory_plan* plan,
    std::size_t addresses) {
  std::vector<recipe_result> results;
  for (const named_recipe& w : recipes) {
    at.next(task + ": " + w.name);
    const recipe_or_error chosen = choose_recipe(used.with(w.recipe, w.conf));
    if (const auto* const wrong = std::get_if<std::string>(&chosen)) return *wrong;
    results.push_back(measure(w.name, program, std::get<any_recipe>(chosen), used.capacity, addresses));
  }
  if (plan != nullptr) {
    const std::string name = "plan, " + used.recipe;
    at.next(task + ": " + name);
    const recipe_or_error chosen = choose_recipe(used);
    if (const auto* const wrong = std::get_if<std::string>(&chosen)) return *wrong;
    const auto& recipe = std::get<any_recipe>(chosen);
    const recipe_result alone = measure(used.recipe, program, recipe, used.capacity, 0);
    results.push_back(measure(name, program, recipe, used.capacity, addresses, plan));
    recipe_result& last = results.back();
    // A run in which other requests fail reserves less, and says nothing about the plan.
    const bool is_alike = last.failures == alone.failures;
    last.warning =
        plan_warning(last.by_plan, is_alike ? last.peak_reserved : 0, is_alike ? alone.peak_reserved : 1);
    const auto add = [&last](const std::string& text) {
      if (!text.empty()) last.warning += (last.warning.empty() ? "" : "; ") + text;
    };
    if (last.failures > alone.failures)
      add(counted(last.failures, "request fails", "requests fail") + " with the plan, and " +
          std::to_string(alone.failures) + " without");
    add(plan_note(*plan, program.source()));
  }
  return results;
}

namespace {

using replay::counted;
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

/// What was measured of one trace.
struct comparison {
  const tessera::trace::program& program;
  const replay::run_settings& used;
  const std::optional<read_result<recorded_run>>& recorded;
  const std::vector<recipe_result>& results;
  std::string left_out;
  std::size_t events_at_start = 0;
};

void print_header(const char* first) {
  std::printf("  %-24s %18s %12s %20s %8s %8s %7s %7s %7s %7s %7s %8s %6s\n", first, "peak reserved, MiB",
              "/ peak live", "cached at end, MiB", "acquire", "release", "create", "destroy", "map", "unmap",
              "retries", "failures", "ns/op");
}

void print_row(const recipe_result& r, const tessera::trace::program& program) {
  std::printf("  %-24s %18.1f %12.3f %20.1f %8ju %8ju %7ju %7ju %7ju %7ju", r.recipe.c_str(),
              mib(r.peak_reserved), ratio(r.peak_reserved, program.peak_live()), mib(r.cached_at_end),
              r.calls.acquire, r.calls.release, r.calls.create, r.calls.destroy, r.calls.map, r.calls.unmap);
  r.as_recorded ? std::printf(" %7s %8zu %6s\n", "-", r.failures, "-")
                : std::printf(" %7ju %8zu %6.1f\n", r.retries, r.failures, r.nanoseconds);
}

void print(const std::string& title, const comparison& c) {
  const tessera::trace::program& program = c.program;
  std::printf("%s: %s\n", title.c_str(), counted(program.events().size(), "operation").c_str());
  const recorded_run* const run = run_in(c.recorded);
  if (run != nullptr) {
    print_header("what the GPU did");
    print_row(run->did, program);
    std::printf("    began with %.1f MiB cached%s%s\n", mib(run->cached_at_start),
                run->conf.empty() ? "" : (", under " + run->conf).c_str(),
                !run->agrees   ? ""
                : *run->agrees ? "; the recipe decides likewise: see verify"
                               : "; the recipe decides otherwise: see verify");
  }
  print_header("recipe");
  for (const recipe_result& r : c.results) print_row(r, program);
  std::printf("  %-24s %18.1f %12.3f\n", "(peak live)", mib(program.peak_live()), 1.0);
  for (const recipe_result& r : c.results) {
    if (r.has_plan) std::printf("  %s: %s\n", r.recipe.c_str(), replay::served_text(r.by_plan).c_str());
    if (!r.warning.empty()) std::printf("  warning: %s\n", r.warning.c_str());
    if (r.largest_peak != 0)
      std::printf("  %s: with other addresses, %.1f to %.1f MiB reserved at peak\n", r.recipe.c_str(),
                  mib(r.least_peak), mib(r.largest_peak));
    if (r.failed_sleeps != 0) std::printf("  %s\n", failed_sleeps_text(r, program.sleeps()).c_str());
  }
  std::printf(
      "  all recipes begin without a cache%s, and release memory where the program empties the cache "
      "or memory runs out\n",
      c.events_at_start != 0
          ? (" and with the " + counted(c.events_at_start, "block that was", "blocks that were") +
             " live when the history begins")
                .c_str()
          : "");
  if (run != nullptr && run->cached_at_start != 0)
    std::puts(
        "  so compare recipes with each other, and not with the recorded run, which began with its cache");
  std::printf("  used: %s\n", replay::capacity_text(c.used).c_str());
  if (!c.left_out.empty()) std::printf("  %s\n", c.left_out.c_str());
  if (const input_error* const why = reason_in(c.recorded))
    std::printf("  no recorded row: %s\n", why->text().c_str());
  std::puts("");
}

void print_json_row(const recipe_result& r, const tessera::trace::program& program) {
  std::printf(
      "{\"recipe\": \"%s\", \"peak_reserved\": %zu, \"over_peak_live\": %.6f, \"cached_at_end\": "
      "%zu, \"acquire\": %ju, \"release\": %ju, \"create\": %ju, \"destroy\": %ju, \"map\": %ju, "
      "\"unmap\": %ju, \"failures\": %zu",
      replay::json_text(r.recipe).c_str(), r.peak_reserved, ratio(r.peak_reserved, program.peak_live()),
      r.cached_at_end, r.calls.acquire, r.calls.release, r.calls.create, r.calls.destroy, r.calls.map,
      r.calls.unmap, r.failures);
  if (!r.as_recorded)
    std::printf(", \"retries\": %ju, \"failed_sleeps\": %zu, \"host_ns_per_operation\": %.1f%s", r.retries,
                r.failed_sleeps, r.nanoseconds,
                r.has_plan ? replay::plan_json(r.by_plan, r.warning).c_str() : "");
  if (r.largest_peak != 0)
    std::printf(", \"least_peak\": %zu, \"largest_peak\": %zu", r.least_peak, r.largest_peak);
}

void print_json(const comparison& c, std::optional<std::size_t> device) {
  const tessera::trace::program& program = c.program;
  std::printf("{\"trace\": \"%s\", \"operations\": %zu, \"peak_live\": %zu, ",
              replay::json_text(program.name()).c_str(), program.events().size(), program.peak_live());
  if (device) std::printf("\"device\": %zu, ", *device);
  if (const recorded_run* const run = run_in(c.recorded)) {
    std::printf("\"recorded\": ");
    print_json_row(run->did, program);
    std::printf(", \"conf\": \"%s\", \"cached_at_start\": %zu, \"agrees\": %s},\n ",
                replay::json_text(run->conf).c_str(), run->cached_at_start,
                !run->agrees   ? "null"
                : *run->agrees ? "true"
                               : "false");
  }
  if (const input_error* const why = reason_in(c.recorded))
    std::printf("\"not_as_recorded\": \"%s\", ", replay::json_text(why->text()).c_str());
  std::printf("%s, \"start\": \"cold\", \"blocks_at_start\": %zu, ", replay::settings_json(c.used).c_str(),
              c.events_at_start);
  if (!c.left_out.empty()) std::printf("\"left_out\": \"%s\", ", replay::json_text(c.left_out).c_str());
  std::printf("\"recipes\": [");
  for (const recipe_result& r : c.results) {
    std::printf("%s\n  ", &r == c.results.data() ? "" : ",");
    print_json_row(r, program);
    std::printf("}");
  }
  std::printf("]}");
}

}  // namespace

int replay::commands::compare(const arguments& args) {
  const auto read_of_plan = read_plan(args);
  if (const auto* const wrong = std::get_if<input_error>(&read_of_plan)) return print_error(wrong->text());
  const auto& plan = std::get<std::optional<tessera::plan::made_plan>>(read_of_plan);
  const tessera::plan::memory_plan view = plan ? plan->view() : tessera::plan::memory_plan{};
  json_list list(args.json);
  int code = done;
  std::string last_error;
  const auto refuse = [&](const std::string& name, const std::string& wrong) {
    list.add_error("trace", name, wrong);
    if (wrong != last_error) code = print_error(wrong);
    last_error = wrong;
  };
  for (const std::string& file : args.files) {
    const auto read = read_traces(file, args.device);
    if (const auto* const wrong = std::get_if<input_error>(&read)) {
      refuse(title_of(file), wrong->text());
      continue;
    }
    const auto& found = std::get<traces>(read);
    for (const auto& one : found.each) {
      if (const auto* const wrong = std::get_if<input_error>(&one)) {
        refuse(title_of(file), wrong->text());
        continue;
      }
      const auto& trace = std::get<run_trace>(one);
      const run_settings used = settle(args, trace.known);
      const tessera::trace::program program(trace.made);
      std::optional<read_result<recorded_run>> recorded;
      if (trace.verified) recorded = find_recorded_run(*found.source, trace);
      auto recipes = add_compared_recipes(named_recipes(args, used, {}), used);
      const std::string left_out = leave_out_unlimited(recipes, used, args);
      steps at(recipes.size() + (plan ? 1 : 0));
      const auto results =
          measure_recipes(recipes, program, used, at, program.name(), plan ? &view : nullptr, args.addresses);
      if (const auto* const wrong = std::get_if<std::string>(&results)) {
        refuse(program.name(), *wrong);
        continue;
      }
      progress_line::clear();
      list.next();
      const comparison made{program,
                            used,
                            recorded,
                            std::get<std::vector<recipe_result>>(results),
                            left_out_text(recipes, used) +
                                (left_out.empty() || left_out_text(recipes, used).empty() ? "" : "; ") +
                                left_out,
                            trace.events_at_start};
      const std::string title = program.name() + fraction_text(used, ", --memory-fraction ");
      args.json ? print_json(made, found.source ? std::optional(trace.device) : std::nullopt)
                : print(title, made);
    }
  }
  return code;
}
