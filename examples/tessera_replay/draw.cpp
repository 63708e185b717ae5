// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <tessera/provider/simulated_device.hpp>
#include <tessera/trace/recording.hpp>
#include "files.hpp"
#include "memory_map.hpp"
#include "recorded_state.hpp"
#include "svg.hpp"

#include "commands.hpp"
#include "compare.hpp"
#include "input.hpp"
#include "replayed.hpp"
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
template <typename Recipe>
replay::recipe_run run(const std::string& name, const tessera::trace::recording& source,
                       const tessera::trace::program& program,
                       const tessera::recipe::policies<Recipe>& settings, std::size_t capacity,
                       bool with_map) {
  replay::recipe_run found{name, timeline(with_map ? 4096 : 512), 0, 0, {}, 0, {}};
  replay::replayed<Recipe> pool{replay::device_of(capacity), settings};
  const auto& events = program.events();
  std::size_t first_failure = events.size();
  std::size_t alive = 0, refused = 0;
  std::vector<std::size_t> bytes(program.slot_count() + 1);
  found.failures = tessera::trace::replay(
      program, pool, [](std::size_t) {},
      [&](std::size_t i, const void* p) {
        std::size_t& mine = bytes[program.slot(i)];
        if (events[i].what == kind::allocate) {
          alive += mine = events[i].bytes;
          if (p == nullptr) first_failure = std::min(first_failure, i);
        } else if (events[i].what == kind::refused) {
          if (p == nullptr) ++refused, first_failure = std::min(first_failure, i);
        } else if (events[i].what == kind::free) {
          alive -= mine;
        }
        tessera::usage now = pool.current_usage();
        now.requested =
            alive;  // as the program sees it, including failed requests; the lower bound counts the same
        found.over.note(now);
      });
  found.failures += refused;
  found.mapped_event = found.failures != 0 ? first_failure : found.over.worst_event();
  if (with_map) {
    found.map = replay::map_after(program, found.mapped_event, replay::device_of(capacity), settings);
    for (const auto& s : found.map.segments) found.segments += !s.is_unbacked;
    found.partly_free = find_partly_free_segments(found.map, source);
    found.map.coarsen(max_cells);
  }
  return found;
}

/// Reads the memory of the recorded run after each event from its history, and makes the map from its state then.
std::optional<replay::recipe_run> record(const replay::traces& all, const replay::run_trace& trace,
                                         const replay::run_settings& used, bool with_map) {
  using action = tessera::observe::snapshot::action;
  replay::recipe_run found{"recorded", timeline(with_map ? 4096 : 512), 0, 0, {}, 0, {}};
  found.as_recorded = true;
  const auto entries = all.source->trace_of(trace.device);
  const auto change = [](const auto& e) -> std::uint64_t {
    const bool more = e.what == action::segment_alloc || e.what == action::segment_map;
    const bool less = e.what == action::segment_free || e.what == action::segment_unmap;
    return more ? e.size : less ? 0 - std::uint64_t{e.size} : 0;
  };
  std::uint64_t reserved = 0;
  for (const auto& s : all.source->segments_of(trace.device)) reserved += s.size;
  for (const auto& e : entries) reserved -= change(e);
  const auto& events = trace.made.events;
  std::map<std::uint64_t, std::size_t> bytes;  // of live allocations, by id
  std::size_t requested = 0, live = 0, first_failure = events.size(), next = 0;
  const auto block_of = [](std::size_t size) {
    return tessera::align_up(size, 512);
  };  // entries name no blocks
  const auto apply = [&](std::size_t i) {
    const tessera::trace::event& e = events[i];
    if (e.what == kind::allocate) bytes[e.id] = e.bytes, requested += e.bytes, live += block_of(e.bytes);
    if (e.what == kind::free) requested -= bytes[e.id], live -= block_of(bytes[e.id]), bytes.erase(e.id);
    if (e.what == kind::refused) ++found.failures, first_failure = std::min(first_failure, i);
  };
  const auto note = [&] {
    tessera::usage now;
    now.requested = requested;
    now.reserved = static_cast<std::size_t>(reserved);
    now.allocated = now.active = std::min(live, now.reserved);
    now.cached = now.reserved - now.active;
    found.over.note(now);
  };
  for (std::size_t i = 0; i < trace.events_at_start; ++i) apply(i);
  for (std::size_t i = 0; i < trace.events_at_start; ++i) note();
  for (std::size_t i = trace.events_at_start; i < events.size(); ++i) {
    for (; next < entries.size() && next <= trace.entries[i - trace.events_at_start]; ++next)
      reserved += change(entries[next]);
    apply(i);
    note();
  }
  found.mapped_event = found.failures != 0 ? first_failure : found.over.worst_event();
  if (!with_map) return found;
  const bool is_at_start = found.mapped_event < trace.events_at_start;
  const std::size_t entry =
      is_at_start ? 0
                  : trace.entries[found.mapped_event - trace.events_at_start] + (found.failures == 0 ? 1 : 0);
  const std::size_t until = is_at_start ? trace.events_at_start : found.mapped_event + 1;
  const bool works = replay::with_recorded_state(
      *all.source, trace.device, std::min(entry, entries.size()), used, [&](auto& pool, const auto& here) {
        const auto live_here = replay::live_events(trace, until, here);
        std::size_t largest_free = 0;
        tessera::observe::for_each_block(pool, [&](const auto&, const tessera::block_view& b) {
          if (b.is == tessera::block_view::state::free) largest_free = std::max(largest_free, b.bytes);
        });
        found.map = replay::map_and_trim(pool, {live_here.begin(), live_here.end()});
        for (auto& s : found.map.segments) {
          const auto number = here.pools.find(s.private_pool);
          if (number != here.pools.end()) s.private_pool = number->second;
        }
        found.map.largest_free = largest_free;
      });
  if (!works) return {};
  for (const auto& s : found.map.segments) found.segments += !s.is_unbacked;
  found.partly_free = find_partly_free_segments(found.map, trace.made);
  found.map.coarsen(max_cells);
  return found;
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
  for (const replay::recipe_run& d : shown.recipes) svg.lines.push_back({d.recipe, &d.over});
  return replay::svg_writer::write(svg);
}

/// Draws one trace.
int draw_one(const replay::arguments& args, const replay::run_trace& trace, const replay::run_settings& used,
             const replay::traces& all) {
  using namespace replay;
  const bool as_svg = args.out.ends_with(".svg");
  std::optional<recipe_run> recorded;
  std::optional<read_result<recorded_run>> did;
  if (trace.verified) did = find_recorded_run(*all.source, trace);
  const auto* const history = did ? std::get_if<recorded_run>(&*did) : nullptr;
  if (history != nullptr) recorded = record(all, trace, settle({}, trace.known), !as_svg);
  const std::vector<named_recipe> recipes =
      named_recipes(args, used,
                    recorded ? std::vector<std::string>()
                             : std::vector<std::string>{"pytorch", "pytorch_expandable", "stitched"});
  const std::size_t lines = recipes.size() + (recorded ? 1 : 0);
  if (lines > max_recipes)
    return print_error("--recipe: at most " + std::to_string(max_recipes - (recorded ? 1 : 0)) +
                       " can be drawn" + (recorded ? " beside the recorded run" : "") + ", not " +
                       std::to_string(recipes.size()));

  const tessera::trace::program program(trace.made);
  picture shown{
      trace.made.name,      &trace.made, program.peak_live(), used.capacity, program.sleeps(), {}, {},
      trace.events_at_start};
  if (recorded) shown.recipes.push_back(std::move(*recorded));
  const std::vector<named_recipe> listed =
      as_svg ? std::vector<named_recipe>() : add_compared_recipes(recipes, used);
  steps at(recipes.size() + listed.size());
  for (const named_recipe& w : recipes) {
    at.next(shown.trace + ": " + w.name);
    const std::string wrong = choose_recipe(
        used.with(w.recipe, w.conf), [&]<typename Recipe>(const tessera::recipe::policies<Recipe>& settings) {
          print_skipped_sleeps<Recipe>(w.name, program);
          shown.recipes.push_back(run<Recipe>(w.name, trace.made, program, settings, used.capacity, !as_svg));
        });
    if (!wrong.empty()) return print_error(wrong);
  }
  if (!as_svg) {
    auto results = measure_recipes(listed, program, used, at, shown.trace);
    if (const auto* const wrong = std::get_if<std::string>(&results)) return print_error(*wrong);
    shown.results = std::move(std::get<std::vector<recipe_result>>(results));
    if (history != nullptr) shown.results.insert(shown.results.begin(), history->did);
  }
  progress_line::clear();
  const std::string out = out_path(args.out, all, trace);
  const auto wrong = save(out, as_svg ? svg_text(shown) : html_report(shown));
  if (wrong) return print_error(wrong->text());
  std::printf("%s: %s\n  used: %s\n", out.c_str(), replay::headline(shown).c_str(),
              settings_text(used).c_str());
  return done;
}

}  // namespace

int replay::commands::draw(const arguments& args) {
  const bool as_svg = args.out.ends_with(".svg");
  if (args.out.empty()) return print_error("draw: --out FILE.html or --out FILE.svg is missing");
  if (!as_svg && !args.out.ends_with(".html"))
    return print_error("--out " + args.out + ": must end with .html or .svg");
  return with_each_trace(args, [&](const run_trace& trace, const run_settings& used, const traces& all) {
    return draw_one(args, trace, used, all);
  });
}
