// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <tessera/caching_allocator.hpp>
#include <tessera/observe/output.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/replay/recording.hpp>
#include "memory_map.hpp"
#include "svg.hpp"

#include "commands.hpp"
#include "compare.hpp"
#include "input.hpp"
#include "report.hpp"
#include "terminal.hpp"

namespace {

using replay::timeline;
using kind = tessera::trace::event::kind;

constexpr std::size_t most_recipes = replay::line_colors.size();
constexpr std::size_t most_cells = 6000;  // of a map: finer is not to be seen, and a report stays small

/// The segments of a map of which most is pinned, with those who hold them.
std::vector<replay::pin> pins_of(const replay::memory_map& map, const tessera::trace::recording& source) {
  std::vector<replay::pin> all(map.segments.size());
  for (const auto& c : map.cells) {
    replay::pin& p = all[c.segment];
    p.live += c.live;
    if (c.is == replay::memory_map::use::live && p.holders.size() < 3)
      p.holders.push_back(source.events[c.event].id);
  }
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto& s = map.segments[i];
    all[i].bytes = s.bytes;
    all[i].pinned = s.pinned;
    all[i].live_blocks = s.live_blocks;
    all[i].in_range = s.in_range;
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const replay::pin& a, const replay::pin& b) { return a.pinned > b.pinned; });
  std::size_t shown = 0;
  while (shown < std::min<std::size_t>(5, all.size()) && all[shown].pinned != 0) ++shown;
  all.resize(shown);
  return all;
}

/// Runs a program and notes how memory stands after each event; a map is made of the moment that says most.
template <typename Recipe>
replay::drawn run(const std::string& name, const tessera::trace::recording& source,
                  const tessera::trace::program& program, const tessera::policies<Recipe>& chosen,
                  std::size_t capacity, bool with_map) {
  replay::drawn found{name, timeline(with_map ? 4096 : 512), 0, 0, {}, 0, {}};
  tessera::caching_allocator<Recipe, tessera::simulated_device> pool{replay::device_of(capacity), chosen};
  const auto& events = program.events();
  std::size_t first_failure = events.size();
  std::size_t alive = 0;
  std::vector<std::size_t> bytes(program.slots() + 1);
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
        tessera::usage now = pool.now();
        now.requested =
            alive;  // by the program, whatever waits for a stream or failed: what the lower bound is of
        found.over.note(now);
      });
  found.eviction_trigger = found.failures != 0 ? first_failure : found.over.worst_event();
  if (with_map) {
    found.map = replay::map_after(program, found.eviction_trigger, replay::device_of(capacity), chosen);
    found.segments = found.map.segments.size();
    found.pins = pins_of(found.map, source);
    found.map.coarsen(most_cells);
  }
  return found;
}

/// Writes a file whole; what is wrong, or nothing.
std::string svg_text(const replay::picture& shown) {
  replay::svg_picture svg{replay::headline(shown),
                          shown.trace + ", " + replay::count_text(shown.source->events.size()) +
                              (shown.source->events.size() == 1 ? " event" : " events") +
                              ": bytes reserved, over what lives as requested",
                          "what lives at most",
                          shown.peak_live,
                          {}};
  for (const replay::drawn& d : shown.recipes) svg.lines.push_back({d.recipe, &d.over});
  return replay::svg_writer::write(svg);
}

}  // namespace

int replay::commands::draw(const arguments& said) {
  const bool as_svg = said.out.ends_with(".svg");
  if (said.out.empty()) return complain("draw: --out FILE.html or --out FILE.svg is missing");
  if (!as_svg && !said.out.ends_with(".html"))
    return complain("--out " + said.out + ": must end with .html or .svg");
  const std::vector<wish> wishes = wishes_of(said, {"pytorch", "pytorch_expandable", "stitched"});
  if (wishes.size() > most_recipes)
    return complain("--recipe: at most " + std::to_string(most_recipes) + " can be drawn, not " +
                    std::to_string(wishes.size()));

  const auto read = read_only_trace(said);
  if (const auto* const wrong = std::get_if<tessera::trace::input_error>(&read))
    return complain(wrong->text());
  const auto& recording = std::get<tessera::trace::recording>(read);
  const tessera::trace::program program(recording);

  picture shown{recording.name, &recording, program.peak_live(), said.capacity, {}, {}};
  const std::vector<wish> listed = as_svg ? std::vector<wish>() : with_compared(wishes);
  steps at(wishes.size() + listed.size());
  for (const wish& w : wishes) {
    at.next(shown.trace + ": " + w.name);
    const std::string wrong = choose_recipe(
        w.recipe, w.conf, said.memory_fraction,
        [&]<typename Recipe>(const tessera::policies<Recipe>& chosen) {
          shown.recipes.push_back(run<Recipe>(w.name, recording, program, chosen, said.capacity, !as_svg));
        });
    if (!wrong.empty()) return complain(wrong);
  }
  if (!as_svg) {
    auto rows = rows_of(listed, program, said, at, shown.trace);
    if (const auto* const wrong = std::get_if<std::string>(&rows)) return complain(*wrong);
    shown.rows = std::move(std::get<std::vector<row>>(rows));
  }
  progress_line::clear();
  const auto wrong = tessera::trace::save(
      said.out, [&](auto& out) { out.write(as_svg ? svg_text(shown) : html_report(shown)); });
  if (wrong) return complain(wrong->text());
  std::printf("%s: %s\n", said.out.c_str(), replay::headline(shown).c_str());
  return done;
}
