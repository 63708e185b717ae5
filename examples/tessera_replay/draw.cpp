// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <tessera/provider/simulated_device.hpp>
#include <tessera/trace/recording.hpp>
#include "files.hpp"
#include "memory_map.hpp"
#include "svg.hpp"

#include "commands.hpp"
#include "compare.hpp"
#include "input.hpp"
#include "recipes.hpp"
#include "report.hpp"
#include "terminal.hpp"

namespace {

using replay::timeline;
using kind = tessera::trace::event::kind;

constexpr std::size_t max_recipes = replay::line_colors.size();
constexpr std::size_t max_cells = 6000;  // keeps reports small; more cells would not be visible

/// Finds the five segments with the most non-releasable bytes, and the ids of their first live blocks.
std::vector<replay::partly_free_segment> find_partly_free_segments(const replay::memory_map& map,
                                                                   const tessera::trace::recording& source) {
  std::vector<replay::partly_free_segment> all(map.segments.size());
  for (const auto& c : map.cells) {
    replay::partly_free_segment& p = all[c.segment];
    p.live += c.live;
    if (c.is == replay::memory_map::use::live && p.ids.size() < 3) p.ids.push_back(source.events[c.event].id);
  }
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto& s = map.segments[i];
    all[i].bytes = s.bytes;
    all[i].non_releasable = s.non_releasable;
    all[i].live_blocks = s.live_blocks;
    all[i].in_range = s.in_range;
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const replay::partly_free_segment& a, const replay::partly_free_segment& b) {
                     return a.non_releasable > b.non_releasable;
                   });
  std::size_t shown = 0;
  while (shown < std::min<std::size_t>(5, all.size()) && all[shown].non_releasable != 0) ++shown;
  all.resize(shown);
  return all;
}

/// Replays a program and records its memory after each event. Makes a map after the first failure, or at peak
/// reserved.
replay::recipe_run run(const std::string& name, const tessera::trace::recording& source,
                       const tessera::trace::program& program, const replay::any_recipe& recipe,
                       std::size_t capacity, bool with_map) {
  replay::recipe_run found{name, timeline(with_map ? 4096 : 512), 0, 0, {}, 0, {}};
  replay::simulated_allocator pool = recipe.make(replay::device_of(capacity));
  const auto& events = program.events();
  std::size_t first_failure = events.size();
  std::size_t alive = 0;
  std::vector<std::size_t> bytes(program.slot_count() + 1);
  found.failures = tessera::trace::replay(
      program, pool, [](std::size_t) {},
      [&](std::size_t i, const void* p) {
        std::size_t& mine = bytes[program.slot(i)];
        if (events[i].what == kind::allocate) {
          alive += mine = events[i].bytes;
          if (p == nullptr) first_failure = std::min(first_failure, i);
        } else if (events[i].what == kind::free) {
          alive -= mine;
        }
        tessera::usage now = pool.current_usage();
        now.requested =
            alive;  // as the program sees it, including failed requests; the lower bound counts the same
        found.over.note(now);
      });
  found.mapped_event = found.failures != 0 ? first_failure : found.over.worst_event();
  if (with_map) {
    found.map = replay::map_after(program, found.mapped_event, replay::device_of(capacity), recipe);
    for (const auto& s : found.map.segments) found.segments += !s.is_unbacked;
    found.partly_free = find_partly_free_segments(found.map, source);
    found.map.coarsen(max_cells);
  }
  return found;
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
  for (const replay::recipe_run& d : shown.recipes) svg.lines.push_back({d.recipe, &d.over});
  return replay::svg_writer::write(svg);
}

}  // namespace

int replay::commands::draw(const arguments& args) {
  const bool as_svg = args.out.ends_with(".svg");
  if (args.out.empty()) return print_error("draw: --out FILE.html or --out FILE.svg is missing");
  if (!as_svg && !args.out.ends_with(".html"))
    return print_error("--out " + args.out + ": must end with .html or .svg");
  std::vector<std::string> defaults = {"pytorch", "pytorch_expandable", "stitched"};
  for (const recipe_entry* own : args.known->own()) {
    if (defaults.size() < max_recipes) defaults.push_back(own->name);
  }
  const std::vector<named_recipe> recipes = named_recipes(args, defaults);
  if (recipes.size() > max_recipes)
    return print_error("--recipe: at most " + std::to_string(max_recipes) + " can be drawn, not " +
                       std::to_string(recipes.size()));

  const auto read = read_only_trace(args);
  if (const auto* const wrong = std::get_if<tessera::trace::input_error>(&read))
    return print_error(wrong->text());
  const auto& recording = std::get<tessera::trace::recording>(read);
  const tessera::trace::program program(recording);

  picture shown{recording.name, &recording, program.peak_live(), args.capacity, program.sleeps(), {}, {}};
  const std::vector<named_recipe> listed =
      as_svg ? std::vector<named_recipe>() : add_compared_recipes(recipes, *args.known);
  steps at(recipes.size() + listed.size());
  for (const named_recipe& w : recipes) {
    at.next(shown.trace + ": " + w.name);
    const recipe_or_error chosen = args.known->choose(w.recipe, w.conf, args.memory_fraction);
    if (const auto* const wrong = std::get_if<std::string>(&chosen)) return print_error(*wrong);
    const auto& recipe = std::get<any_recipe>(chosen);
    print_skipped_sleeps(w.name, recipe, program);
    shown.recipes.push_back(run(w.name, recording, program, recipe, args.capacity, !as_svg));
  }
  if (!as_svg) {
    auto results = measure_recipes(listed, program, args, at, shown.trace);
    if (const auto* const wrong = std::get_if<std::string>(&results)) return print_error(*wrong);
    shown.results = std::move(std::get<std::vector<recipe_result>>(results));
  }
  progress_line::clear();
  const auto wrong = save(args.out, as_svg ? svg_text(shown) : html_report(shown));
  if (wrong) return print_error(wrong->text());
  std::printf("%s: %s\n", args.out.c_str(), replay::headline(shown).c_str());
  return done;
}
