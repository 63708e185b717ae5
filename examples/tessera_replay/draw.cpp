// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <tessera/plan/planned.hpp>
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
#include "replayed.hpp"
#include "report.hpp"
#include "terminal.hpp"

namespace {

constexpr std::size_t max_runs = replay::line_colors.size();
constexpr std::size_t max_buckets = 512;  // of the lines of an SVG picture

/// Makes the numbers of a run's headline: after the first failure, or at peak reserved.
void describe(replay::drawn_run& run, std::size_t first_failure, const tessera::trace::program& program) {
  run.mapped_event = run.failures != 0 ? first_failure : run.over.worst_event();
  const replay::memory_map map = replay::map_at(run.log, program, run.mapped_event);
  run.sums = map.sums;
  run.largest_free =
      run.mapped_event == 0 ? 0 : replay::map_at(run.log, program, run.mapped_event - 1).largest_free;
}

/// Replays a program and records its memory.
template <typename Recipe>
replay::drawn_run run_recipe(const std::string& name, const tessera::trace::program& program,
                             const tessera::recipe::policies<Recipe>& settings, std::size_t capacity) {
  replay::logged_run made = replay::log_replay(program, max_buckets, [&](const auto& observer) {
    return replay::logged<Recipe>{replay::device_of(capacity), settings, observer};
  });
  replay::drawn_run run{name, replay::run_kind::replayed, std::move(made.log), std::move(made.over),
                        made.failures};
  describe(run, made.first_failure, program);
  return run;
}
template <typename Recipe>
replay::drawn_run run_plan(const std::string& name, const tessera::trace::program& program,
                           const tessera::recipe::policies<Recipe>& settings, std::size_t capacity,
                           const tessera::plan::memory_plan& plan) {
  replay::logged_run made = replay::log_replay<true>(program, max_buckets, [&](const auto& observer) {
    return tessera::plan::planned<replay::logged<Recipe>>{plan, replay::device_of(capacity), settings,
                                                          observer};
  });
  replay::drawn_run run{name, replay::run_kind::planned, std::move(made.log), std::move(made.over),
                        made.failures};
  describe(run, made.first_failure, program);
  return run;
}

/// The run that a snapshot recorded. A history that contradicts itself, or is empty, has none; `why` says so.
std::optional<replay::drawn_run> recorded_run_of(const replay::traces& read,
                                                 const tessera::trace::recording& recording,
                                                 const tessera::trace::program& program,
                                                 std::size_t& start_events, std::string& why) {
  if (!read.source) return std::nullopt;
  auto found = replay::recorded_blocks_of(*read.source, read.devices.front(), recording);
  if (const auto* const wrong = std::get_if<tessera::trace::input_error>(&found)) {
    why = wrong->text();
    return std::nullopt;
  }
  auto& made = std::get<replay::recorded_blocks>(found);
  start_events = made.start_events;
  replay::timeline over = replay::timeline_of(made.log, program, max_buckets);
  replay::drawn_run run{"recorded run", replay::run_kind::recorded, std::move(made.log), std::move(over)};
  describe(run, 0, program);
  return run;
}

/// Draws the picture as SVG.
std::string svg_text(const replay::picture& shown) {
  replay::svg_picture svg{replay::headline(shown),
                          shown.trace + ", " + replay::count_text(shown.source->events.size()) +
                              (shown.source->events.size() == 1 ? " event" : " events") +
                              ": bytes reserved, over bytes live as requested",
                          "peak live",
                          shown.peak_live,
                          {}};
  for (const replay::drawn_run& d : shown.runs) svg.lines.push_back({d.name, &d.over});
  return replay::svg_writer::write(svg);
}

}  // namespace

int replay::commands::draw(const arguments& args) {
  const bool as_svg = args.out.ends_with(".svg");
  if (args.out.empty()) return print_error("draw: --out FILE.html or --out FILE.svg is missing");
  if (!as_svg && !args.out.ends_with(".html"))
    return print_error("--out " + args.out + ": must end with .html or .svg");
  const std::vector<named_recipe> recipes =
      named_recipes(args, {"pytorch", "pytorch_expandable", "stitched"});
  if (recipes.size() > max_runs)
    return print_error("--recipe: at most " + std::to_string(max_runs) + " can be drawn, not " +
                       std::to_string(recipes.size()));

  const auto read_of_plan = read_plan(args);
  if (const auto* const wrong = std::get_if<tessera::trace::input_error>(&read_of_plan))
    return print_error(wrong->text());
  const auto& plan = std::get<std::optional<tessera::plan::made_plan>>(read_of_plan);
  const tessera::plan::memory_plan view = plan ? plan->view() : tessera::plan::memory_plan{};
  const auto read = read_one_trace(args);
  if (const auto* const wrong = std::get_if<tessera::trace::input_error>(&read))
    return print_error(wrong->text());
  const auto& found = std::get<traces>(read);
  const auto& recording = std::get<tessera::trace::recording>(found.each[0]);
  const tessera::trace::program program(recording);

  picture shown{recording.name, &recording, program.peak_live(), args.capacity, program.sleeps()};
  const std::vector<named_recipe> listed =
      as_svg ? std::vector<named_recipe>() : add_compared_recipes(recipes);
  steps at(recipes.size() + (plan ? 1 : 0) + listed.size() + (plan && !as_svg ? 1 : 0));
  std::string why;
  if (auto recorded = recorded_run_of(found, recording, program, shown.start_events, why))
    shown.runs.push_back(std::move(*recorded));
  if (!why.empty()) std::fprintf(stderr, "tessera-replay: the recorded run is not drawn: %s\n", why.c_str());
  for (const named_recipe& w : recipes) {
    at.next(shown.trace + ": " + w.name);
    const std::string wrong =
        choose_recipe(w.recipe, w.conf, args.memory_fraction,
                      [&]<typename Recipe>(const tessera::recipe::policies<Recipe>& settings) {
                        print_skipped_sleeps<Recipe>(w.name, program);
                        shown.runs.push_back(run_recipe<Recipe>(w.name, program, settings, args.capacity));
                      });
    if (!wrong.empty()) return print_error(wrong);
  }
  if (plan) {
    const std::string name = "plan, " + args.recipe;
    at.next(shown.trace + ": " + name);
    const std::string wrong =
        choose_recipe(args.recipe, args.conf, args.memory_fraction,
                      [&]<typename Recipe>(const tessera::recipe::policies<Recipe>& settings) {
                        shown.runs.push_back(run_plan<Recipe>(name, program, settings, args.capacity, view));
                      });
    if (!wrong.empty()) return print_error(wrong);
    shown.note = plan_note(view, recording);
  }
  if (!as_svg) {
    auto results = measure_recipes(listed, program, args, at, shown.trace, nullptr, plan ? &view : nullptr);
    if (const auto* const wrong = std::get_if<std::string>(&results)) return print_error(*wrong);
    shown.results = std::move(std::get<std::vector<recipe_result>>(results));
  }
  progress_line::clear();
  const auto wrong = save(args.out, as_svg ? svg_text(shown) : html_report(shown));
  if (wrong) return print_error(wrong->text());
  std::printf("%s: %s\n", args.out.c_str(), replay::headline(shown).c_str());
  return done;
}
