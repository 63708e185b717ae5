// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <tessera/plan/memory_plan.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/trace/recording.hpp>
#include "files.hpp"
#include "log_map.hpp"
#include "memory_map.hpp"
#include "plan.hpp"
#include "recorded_log.hpp"
#include "run_log.hpp"
#include "svg.hpp"

#include "commands.hpp"
#include "compare.hpp"
#include "input.hpp"
#include "recipes.hpp"
#include "report.hpp"
#include "terminal.hpp"

namespace {

constexpr std::size_t max_runs = replay::line_colors.size();
constexpr std::size_t max_buckets = 512;  // of the lines of an SVG picture

/// Returns the event at which most bytes are active, of those that have as many bytes reserved as after `event` and are
/// not before `begin`; `event` if there is none.
std::size_t fullest_event(const replay::run_log& log, const tessera::trace::program& program,
                          std::size_t event, std::size_t begin) {
  const std::size_t events = program.events().size();
  std::vector<std::int64_t> active(events + 1), reserved(events + 1);
  const auto add = [&](std::vector<std::int64_t>& to, std::size_t from, std::size_t until, std::size_t bytes,
                       std::int64_t sign = 1) {
    to[from] += sign * static_cast<std::int64_t>(bytes);
    to[(std::min)(until, events)] -= sign * static_cast<std::int64_t>(bytes);
  };
  std::size_t slot = 0;
  for (std::size_t i = 0; i < events; ++i) {
    if (program.events()[i].what != tessera::trace::event::kind::allocate) continue;
    const replay::run_log::block& b = log.blocks[slot++];
    if (b.address != 0) add(active, i, b.to, b.bytes);
  }
  for (const replay::run_log::segment& s : log.segments) add(reserved, s.from, s.to, s.bytes);
  for (const replay::run_log::sleeping& s : log.asleep) add(reserved, s.from, s.to, s.bytes, -1);
  std::partial_sum(active.begin(), active.end(), active.begin());
  std::partial_sum(reserved.begin(), reserved.end(), reserved.begin());
  std::size_t best = event;
  for (std::size_t i = begin; i < events; ++i)
    if (reserved[i] == reserved[event] && (best < begin || active[i] > active[best])) best = i;
  return best;
}

/// Makes the numbers of a run's headline: after the first failure, or at peak reserved. If memory was reserved before the
/// history begins, the peak says most where most of it is in use.
void describe(replay::drawn_run& run, std::size_t first_failure, const tessera::trace::program& program,
              std::size_t events_at_start = 0) {
  run.mapped_event = run.failures != 0 ? first_failure : run.over.worst_event();
  if (run.failures == 0 && run.mapped_event < events_at_start) {
    run.mapped_event = fullest_event(run.log, program, run.mapped_event, events_at_start);
    run.has_cause = false;
  }
  const replay::memory_map map = replay::map_at(run.log, program, run.mapped_event);
  run.sums = map.sums;
  for (const auto& s : map.segments) run.segments += !s.is_unbacked;
  // A failure is reported after its recovery. A request that grows the peak is reported before it takes memory.
  if (run.failures != 0) run.largest_free = map.largest_free;
  if (run.failures == 0 && run.mapped_event != 0)
    run.largest_free = replay::map_at(run.log, program, run.mapped_event - 1).largest_free;
}

/// Replays a program, with a plan if there is one, and records its memory.
replay::drawn_run run_recipe(const std::string& name, const tessera::trace::program& program,
                             const replay::any_recipe& recipe, std::size_t capacity,
                             const tessera::plan::memory_plan* plan = nullptr) {
  replay::logged_run made =
      replay::log_replay(program, max_buckets, recipe, replay::device_of(capacity), plan);
  replay::drawn_run run{name, plan == nullptr ? replay::run_kind::replayed : replay::run_kind::planned,
                        std::move(made.log), std::move(made.over), made.failures};
  describe(run, made.first_failure, program);
  return run;
}

/// The recorded run of a trace from a snapshot; nothing if its history contradicts itself.
std::optional<replay::drawn_run> run_recorded(const replay::traces& all, const replay::run_trace& trace,
                                              const tessera::trace::program& program) {
  auto found = replay::recorded_log_of(*all.source, trace.device, trace.made);
  auto* const log = std::get_if<replay::run_log>(&found);
  if (log == nullptr) return std::nullopt;
  replay::timeline over = replay::timeline_of(*log, program, max_buckets);
  replay::drawn_run run{"recorded", replay::run_kind::recorded, std::move(*log), std::move(over)};
  const auto& events = program.events();
  std::size_t first_failure = events.size();
  for (std::size_t i = events.size(); i-- > 0;) {
    if (events[i].what != tessera::trace::event::kind::refused) continue;
    ++run.failures;
    first_failure = i;
  }
  describe(run, first_failure, program, trace.events_at_start);
  return run;
}

/// Draws the picture as SVG.
std::string svg_text(const replay::picture& shown) {
  replay::svg_picture svg{
      replay::headline(shown),
      shown.trace + ", " + replay::count_text(shown.source->events.size()) +
          (shown.source->events.size() == 1 ? " event" : " events") +
          (shown.events_at_start == 0 ? ""
                                      : ", the first " + replay::count_text(shown.events_at_start) +
                                            " of what was live when the history begins") +
          ": bytes reserved, over bytes live as requested",
      "peak live",
      shown.peak_live,
      {}};
  for (const replay::drawn_run& d : shown.runs) svg.lines.push_back({d.name, &d.over});
  return replay::svg_writer::write(svg);
}

/// Draws one trace.
replay::verb_result draw_one(const replay::arguments& args, const replay::run_trace& trace,
                             const replay::run_settings& used, const replay::traces& all,
                             const tessera::plan::made_plan* plan) {
  using namespace replay;
  const bool as_svg = args.out.ends_with(".svg");
  const tessera::trace::program program(trace.made);
  picture shown{trace.made.name, &trace.made,      program.peak_live(),
                used.capacity,   program.sleeps(), trace.events_at_start};
  if (all.source.has_value() && trace.device < all.source->dropped.size())
    shown.events_dropped = all.source->dropped[trace.device];
  std::optional<read_result<recorded_run>> did;
  if (trace.verified) did = find_recorded_run(*all.source, trace);
  const auto* const history = did ? std::get_if<recorded_run>(&*did) : nullptr;
  if (history != nullptr) {
    if (auto recorded = run_recorded(all, trace, program)) shown.runs.push_back(std::move(*recorded));
  }
  std::vector<std::string> defaults;
  if (shown.runs.empty()) defaults = {"pytorch", "pytorch_expandable", "stitched"};
  const std::size_t most_defaults = max_runs - shown.runs.size() - (plan != nullptr ? 1 : 0);
  for (const recipe_entry* own : used.known->own()) {
    if (defaults.size() < most_defaults) defaults.push_back(own->name);
  }
  std::vector<named_recipe> recipes = named_recipes(args, used, defaults);
  const std::string left_out = leave_out_unlimited(recipes, used, args);
  const std::size_t others = shown.runs.size() + (plan != nullptr ? 1 : 0);
  if (recipes.size() + others > max_runs)
    return "--recipe: at most " + std::to_string(max_runs - others) + " can be drawn" +
           (!shown.runs.empty() ? " beside the recorded run" : "") +
           (plan != nullptr ? (shown.runs.empty() ? " beside the plan" : " and the plan") : "") + ", not " +
           std::to_string(recipes.size());

  const tessera::plan::memory_plan view = plan != nullptr ? plan->view() : tessera::plan::memory_plan{};
  std::vector<named_recipe> listed =
      as_svg ? std::vector<named_recipe>() : add_compared_recipes(recipes, used);
  (void)leave_out_unlimited(listed, used, args);
  const std::size_t with_plan = plan == nullptr ? 0 : as_svg ? 1 : 2;
  steps at(recipes.size() + listed.size() + with_plan);
  for (const named_recipe& w : recipes) {
    at.next(shown.trace + ": " + w.name);
    const recipe_or_error chosen = choose_recipe(used.with(w.recipe, w.conf));
    if (const auto* const wrong = std::get_if<std::string>(&chosen)) return *wrong;
    const auto& recipe = std::get<any_recipe>(chosen);
    print_skipped_sleeps(w.name, recipe, program);
    shown.runs.push_back(run_recipe(w.name, program, recipe, used.capacity));
  }
  if (plan != nullptr) {
    const std::string name = "plan, " + used.recipe;
    at.next(shown.trace + ": " + name);
    const recipe_or_error chosen = choose_recipe(used);
    if (const auto* const wrong = std::get_if<std::string>(&chosen)) return *wrong;
    shown.runs.push_back(run_recipe(name, program, std::get<any_recipe>(chosen), used.capacity, &view));
    shown.note = plan_note(view, trace.made);
  }
  if (!as_svg) {
    auto results = measure_recipes(listed, program, used, at, shown.trace, plan != nullptr ? &view : nullptr);
    if (const auto* const wrong = std::get_if<std::string>(&results)) return *wrong;
    shown.results = std::move(std::get<std::vector<recipe_result>>(results));
    if (history != nullptr) shown.results.insert(shown.results.begin(), history->did);
  }
  progress_line::clear();
  const std::string out = out_path(args.out, all, trace);
  const auto wrong = save(out, as_svg ? svg_text(shown) : html_report(shown));
  if (wrong) return wrong->text();
  std::string names;
  for (const drawn_run& run : shown.runs) names += (names.empty() ? "" : "; ") + run.name;
  std::printf("%s: %s\n  drawn: %s\n  used: %s\n", out.c_str(), replay::headline(shown).c_str(),
              names.c_str(), capacity_text(used).c_str());
  if (!left_out.empty()) std::printf("  %s\n", left_out.c_str());
  if (!shown.note.empty()) std::printf("  note: %s\n", shown.note.c_str());
  return +done;
}

}  // namespace

int replay::commands::draw(const arguments& args) {
  const auto read = read_plan(args);
  if (const auto* const wrong = std::get_if<tessera::trace::input_error>(&read))
    return print_error(wrong->text());
  const auto& plan = std::get<std::optional<tessera::plan::made_plan>>(read);
  return with_each_trace(args, [&](const run_trace& trace, const run_settings& used, const traces& all) {
    return draw_one(args, trace, used, all, plan ? &*plan : nullptr);
  });
}
