// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <tessera/core/bytes.hpp>
#include <tessera/trace/recording.hpp>

#include "input.hpp"
#include "report.hpp"
#include "report_script.hpp"
#include "report_style.hpp"
#include "snapshot_recording.hpp"
#include "svg.hpp"

namespace {

using namespace replay::report;
using replay::count_text;
using replay::decimal_text;
using replay::markup_text;
using replay::picture;
using replay::recipe_run;

/// The request at the mapped event, and the largest free block before it.
std::string cause(const recipe_run& d, const picture& shown) {
  const auto& asked = shown.source->events[d.mapped_event];
  using kind = tessera::trace::event::kind;
  if (asked.what != kind::allocate && asked.what != kind::refused) return {};
  std::string text = "The event asks for ";
  text += bytes_text(asked.bytes) + " on stream " + number(asked.stream.handle) + "; ";
  if (d.map.largest_free == 0) return text + "before it, nothing was free.";
  return text + "before it, the largest free block had " + bytes_text(d.map.largest_free) +
         (d.map.largest_free < asked.bytes ? ", too little." : ", but could not serve it.");
}

constexpr std::size_t max_pools = 8;  // shown by name

/// A sentence about the private pools; empty if there are none.
std::string pools_text(const recipe_run& d) {
  struct pool {
    std::size_t bytes = 0, segments = 0;
    bool is_unbacked = false;
  };
  std::map<std::uint64_t, pool> pools;  // by their numbers in the recording
  for (const replay::memory_map::segment& s : d.map.segments) {
    if (s.private_pool == 0) continue;
    pool& in = pools[s.private_pool];
    in.bytes += s.bytes;
    ++in.segments;
    in.is_unbacked = s.is_unbacked;
  }
  std::string text;
  std::size_t shown = 0;
  for (const auto& [number, in] : pools) {
    if (shown++ == max_pools) {
      text += "; " + count_text(pools.size() - max_pools) + " more private pools";
      break;
    }
    text += (text.empty() ? "Private pool " : "; private pool ") + std::to_string(number) + " has " +
            bytes_text(in.bytes) + " in " + plural(in.segments, "segment", "segments") +
            (in.is_unbacked ? ", asleep" : "");
  }
  return text.empty() ? text : text + ". ";
}

}  // namespace

std::string replay::report::bytes_text(std::size_t bytes) {
  std::string text = tessera::format_bytes(bytes).text();
  return text.replace(text.find(' '), 1, "\u00a0");
}
std::string replay::report::times(std::size_t bytes, const picture& shown) {
  return decimal_text(bytes, shown.peak_live, 2) + "\u00a0\u00d7";
}
std::string replay::report::plural(std::size_t n, const std::string& one, const std::string& several) {
  return count_text(n) + ' ' + (n == 1 ? one : several);
}
std::string replay::report::number(std::size_t n) { return std::to_string(n); }

std::string replay::report::lead(const picture& shown) {
  const recipe_run& first = shown.recipes.front();
  const auto& sums = first.map.sums;
  std::string text = "Peak live is ";
  text += bytes_text(shown.peak_live) +
          (shown.sleeps == 0 ? ", as requested: no allocator can reserve less. " : ", as requested. ") +
          markup_text(first.as_recorded ? "the recorded run" : first.recipe);
  text += first.failures == 0 ? "\'s peak reserved is " + bytes_text(sums.reserved) + "; at that time "
                              : " first runs out of memory with " + bytes_text(sums.reserved) + " reserved; ";
  text += bytes_text(sums.non_releasable) + " of it is free but non-releasable, kept by " +
          plural(sums.keeping_blocks, "live block", "live blocks");
  if (first.failures == 0 && sums.releasable != 0)
    text += ", and " + bytes_text(sums.releasable) + " free in whole segments or pages";
  text += ". " + cause(first, shown);
  if (shown.events_at_start != 0)
    text += " The first " + plural(shown.events_at_start, "event allocates", "events allocate") +
            " what was live when the history begins.";
  return text;
}

std::string replay::report::map_caption(const recipe_run& d, const picture& shown) {
  const auto& sums = d.map.sums;
  std::string text = d.failures != 0
                         ? "After event " + count_text(d.mapped_event) + ", the first of " +
                               plural(d.failures, "allocation that fails", "allocations that fail")
                         : "After event " + count_text(d.mapped_event) + ", at peak reserved";
  text += ": " + bytes_text(sums.reserved) + " in " + plural(d.segments, "segment", "segments") + "; " +
          bytes_text(sums.live) + " live in " + plural(sums.live_blocks, "block", "blocks") + ", ";
  if (sums.pending != 0) text += bytes_text(sums.pending) + " pending, ";
  text += bytes_text(sums.non_releasable) + " free but non-releasable, kept by " +
          plural(sums.keeping_blocks, "live block", "live blocks") + ", " + bytes_text(sums.releasable) +
          " releasable";
  if (sums.asleep != 0) text += "; " + bytes_text(sums.asleep) + " more are asleep";
  return text + ". " + pools_text(d) + cause(d, shown);
}

std::string replay::headline(const picture& shown) {
  const recipe_run& first = shown.recipes.front();
  const auto peak = [](const recipe_run& d) { return d.over.worst().reserved; };
  // The recorded run begins with its cache, so the recipes are compared with each other.
  const bool has_others = first.as_recorded && shown.recipes.size() > 1;
  const auto best = std::min_element(shown.recipes.begin() + (has_others ? 1 : 0), shown.recipes.end(),
                                     [&](const recipe_run& a, const recipe_run& b) {
                                       return std::pair(a.failures, peak(a)) < std::pair(b.failures, peak(b));
                                     });
  std::string text;
  if (first.as_recorded) {
    text = "The recorded run reserved " + times(peak(first), shown) + " peak live";
    if (first.failures != 0) text += ", and " + plural(first.failures, "request", "requests") + " failed";
    if (!has_others) return text;
    text += "; without a cache at the start, " + best->recipe + " reserves " + times(peak(*best), shown);
    return best->failures == 0 ? text
                               : text + ", and " + plural(best->failures, "request fails", "requests fail");
  }
  if (first.failures != 0) {
    text = first.recipe + " runs out of memory " + plural(first.failures, "time", "times") + " with " +
           bytes_text(shown.capacity);
    return best->failures == 0 ? text + "; " + best->recipe + " completes" : text;
  }
  text = first.recipe + " reserves " + times(peak(first), shown) + " peak live";
  const std::string less = times(peak(*best), shown);
  return less != times(peak(first), shown) ? text + ", " + best->recipe + ' ' + less : text;
}

namespace {

void add_head(std::string& page, const picture& shown) {
  page +=
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; img-src data:; "
      "style-src 'unsafe-inline'; script-src 'unsafe-inline'\">\n<link rel=\"icon\" "
      "href=\"data:,\">\n<title>" +
      markup_text(shown.trace) + ": memory over time</title>\n<style>\n:root{";
  const auto colors = [&](bool dark) {
    for (std::size_t i = 0; i < replay::line_colors.size(); ++i) {
      const auto& [on_light, on_dark] = replay::line_colors[i];
      page += "--c" + number(i) + ':' + std::string(dark ? on_dark : on_light) + ';';
    }
    page += dark ? replay::report::dark_colors : replay::report::light_colors;
  };
  colors(false);
  page += "}\n@media (prefers-color-scheme:dark){:root:not([data-theme=light]){";
  colors(true);
  page += "}}\n:root[data-theme=dark]{";
  colors(true);
  page += '}';
  page += replay::report::style;
  page += "</style>\n</head>\n<body>\n<main>\n<div class=\"top\"><p>" + markup_text(shown.trace) + ", " +
          plural(shown.source->events.size(), "event", "events") + ", a device of " +
          bytes_text(shown.capacity) + "</p><button id=\"theme\" type=\"button\">Dark</button></div>\n<h1>" +
          markup_text(replay::headline(shown)) + "</h1>\n<p class=\"lead\">" + lead(shown) + "</p>\n";
}

std::string zoom_buttons(const std::string& chart, const std::string& what) {
  std::string text = "<div class=\"tools\" role=\"group\" aria-label=\"Zoom of " + what + "\">";
  const char* const buttons[][3] = {
      {"0.5", "+", "Zoom in"}, {"2", "\u2212", "Zoom out"}, {"0", "All", "Show all"}};
  for (const auto& [factor, sign, meaning] : buttons)
    text += std::string("<button type=\"button\" data-zoom=\"") + factor + "\" aria-controls=\"" + chart +
            "\" aria-label=\"" + meaning + "\" title=\"" + meaning + "\">" + sign + "</button>";
  return text + "</div>";
}

std::string swatch(std::size_t i) {
  return "<span class=\"swatch\" style=\"background:var(--c" + number(i % replay::line_colors.size()) +
         ")\"></span>";
}
std::string box(const std::string& color, const std::string& meaning) {
  return "<span><i class=\"box\" style=\"background:" + color + "\"></i>" + meaning + "</span>";
}

void add_time(std::string& page, const picture& shown) {
  const bool pending = std::any_of(shown.recipes.begin(), shown.recipes.end(), replay::ever_pending);
  const bool asleep = std::any_of(shown.recipes.begin(), shown.recipes.end(), replay::ever_asleep);
  page +=
      "<section aria-labelledby=\"time-title\">\n<div class=\"bar\"><h2 id=\"time-title\">Reserved over "
      "time</h2>" +
      zoom_buttons("time", "time") +
      "</div>\n<p class=\"hint\">Point or press \u2190 \u2192 to read, drag or press + \u2212 to zoom, 0 for "
      "all. Shaded: live bytes, as requested. The dots mark the events mapped below.</p>\n"
      "<div id=\"time\" class=\"chart\" tabindex=\"0\" role=\"slider\" aria-label=\"Event of the program\" "
      "aria-valuemin=\"0\" aria-valuemax=\"" +
      number(shown.source->events.size() - 1) +
      "\" aria-valuenow=\"0\"><canvas id=\"lines\" class=\"lines\"></canvas></div>\n"
      "<p id=\"where\" class=\"note\"></p>\n<div class=\"scroll\" tabindex=\"0\" role=\"group\" "
      "aria-label=\"At the "
      "cursor\"><table id=\"readout\" class=\"readout" +
      std::string(pending || asleep ? " five" : "") +
      "\"><thead><tr><th scope=\"col\">at the cursor</th><th scope=\"col\">reserved</th>"
      "<th scope=\"col\">live</th>" +
      std::string(pending ? "<th scope=\"col\">pending</th>" : "") + "<th scope=\"col\">cached</th>" +
      std::string(asleep ? "<th scope=\"col\">asleep</th>" : "") + "</tr></thead><tbody>";
  for (std::size_t i = 0; i < shown.recipes.size(); ++i)
    page += "<tr><th scope=\"row\">" + swatch(i) + markup_text(shown.recipes[i].recipe) +
            "</th><td data-series=\"reserved\"></td><td data-series=\"live\"></td>" +
            (pending ? "<td data-series=\"pending\"></td>" : "") + "<td data-series=\"cached\"></td>" +
            (asleep ? "<td data-series=\"asleep\"></td>" : "") + "</tr>";
  page += "<tr><th scope=\"row\">live, as requested</th><td></td><td id=\"asked\"></td>" +
          std::string(pending ? "<td></td>" : "") + (asleep ? "<td></td>" : "") +
          "<td></td></tr></tbody></table></div>\n<div class=\"panels\">\n";
  for (std::size_t i = 0; i < shown.recipes.size(); ++i) {
    const recipe_run& d = shown.recipes[i];
    const std::size_t peak = d.over.worst().reserved;
    page += "<figure><figcaption><h3>" + swatch(i) + markup_text(d.recipe) + "</h3>" + bytes_text(peak) +
            " peak reserved, " + times(peak, shown) + "</figcaption><canvas id=\"panel" + number(i) +
            "\" class=\"panel\" role=\"img\" aria-label=\"Live and cached memory of " +
            markup_text(d.recipe) + " over time\"></canvas></figure>\n";
  }
  page +=
      "</div>\n<p class=\"key\">" + box("var(--live)", "live, in blocks") +
      (pending ? box("var(--pending)", "pending: freed, a stream still uses it") : "") +
      box("var(--cached)", "cached: free, still reserved") +
      (asleep ? box("var(--asleep)", "asleep: the memory is back at the device, the addresses stay") : "") +
      "<span>dashed: peak live</span></p>\n</section>\n";
}

void add_pins(std::string& page, const recipe_run& d, const picture& shown) {
  if (d.partly_free.empty()) return;
  page +=
      "<div class=\"scroll\" tabindex=\"0\" role=\"group\" aria-label=\"Segments with most non-releasable "
      "memory\"><table "
      "class=\"pins\">"
      "<thead><tr><th scope=\"col\">segment</th><th scope=\"col\">non-releasable</th><th "
      "scope=\"col\">live</th><th scope=\"col\">kept by</th></tr>"
      "</thead><tbody>";
  for (const replay::partly_free_segment& p : d.partly_free) {
    page += std::string("<tr><th scope=\"row\">") + (p.in_range ? "a mapped run of " : "a segment of ") +
            bytes_text(p.bytes) + "</th><td>" + bytes_text(p.non_releasable) + "</td><td>" +
            bytes_text(p.live) + "</td><td>";
    for (std::size_t i = 0; i < p.ids.size(); ++i) {
      (page += i != 0 ? ", " : "id ") += number(p.ids[i]);
      const std::string line = replay::origin_text(*shown.source, p.ids[i]);
      if (!line.empty()) page.append(" (").append(markup_text(line)).append(")");
    }
    if (p.live_blocks > p.ids.size()) page += " and " + count_text(p.live_blocks - p.ids.size()) + " more";
    page += "</td></tr>";
  }
  page += "</tbody></table></div>\n";
}

void add_maps(std::string& page, const picture& shown) {
  const bool pending = std::any_of(shown.recipes.begin(), shown.recipes.end(),
                                   [](const recipe_run& d) { return d.map.sums.pending != 0; });
  const bool asleep = std::any_of(shown.recipes.begin(), shown.recipes.end(),
                                  [](const recipe_run& d) { return d.map.sums.asleep != 0; });
  const std::vector<std::uint64_t> pools = replay::private_pools(shown);
  page +=
      "<section aria-labelledby=\"map-title\">\n<h2 id=\"map-title\">Memory map at the peak</h2>\n"
      "<p class=\"hint\">Addresses run from left to right and on in the next row; a line below joins the "
      "blocks of a segment. Point or press \u2190 \u2192 to read blocks; the live neighbours of a "
      "non-releasable one "
      "are framed; "
      "wheel or + \u2212 to zoom, drag to move.</p>\n"
      "<p class=\"key\">" +
      box("var(--live)", "live") + (pending ? box("var(--pending)", "pending") : "") +
      box("repeating-linear-gradient(135deg,var(--kept) 0 3px,var(--stripe) 3px 4px)",
          "free, non-releasable") +
      box("var(--idle)", "free, releasable") + (asleep ? box("var(--asleep)", "asleep") : "");
  for (std::size_t i = 0; i < std::min(pools.size(), max_pools); ++i)
    page += "<span>" + swatch(shown.recipes.size() + i) + "line below: private pool " +
            std::to_string(pools[i]) + "</span>";
  if (pools.size() > max_pools)
    page += "<span>and " + count_text(pools.size() - max_pools) + " more private pools</span>";
  page += "</p>\n";
  for (std::size_t i = 0; i < shown.recipes.size(); ++i) {
    const recipe_run& d = shown.recipes[i];
    const std::string name = markup_text(d.recipe);
    const std::string id = "map" + number(i);
    page += "<article><div class=\"bar\"><h3>" + swatch(i) + name + "</h3>" +
            zoom_buttons(id, "the map of " + name) + "</div><p>" + map_caption(d, shown) + "</p>";
    if (!d.map.cells.empty())
      page += "<div id=\"" + id +
              "\" class=\"chart\" tabindex=\"0\" role=\"slider\" aria-label=\"Blocks of " + name +
              "\" aria-valuemin=\"1\" aria-valuemax=\"" + number(d.map.cells.size()) +
              "\" aria-valuenow=\"1\"><canvas class=\"map\"></canvas></div><p id=\"shown" + number(i) +
              "\" class=\"note\"></p><p id=\"detail" + number(i) + "\" class=\"detail\"></p>\n";
    add_pins(page, d, shown);
    page += "</article>\n";
  }
  page += "</section>\n";
}

void add_table(std::string& page, const picture& shown) {
  page +=
      "<section aria-labelledby=\"table-title\">\n<div class=\"bar\"><h2 id=\"table-title\">All recipes on "
      "this "
      "trace</h2></div>\n<div class=\"scroll\" tabindex=\"0\" role=\"group\" aria-label=\"Comparison of "
      "recipes\">"
      "<table id=\"compare\"><thead><tr><th scope=\"col\">recipe</th><th scope=\"col\">peak reserved, "
      "MiB</th><th "
      "scope=\"col\">/ peak live</th><th scope=\"col\">cached, MiB</th>"
      "<th scope=\"col\">acquire</th><th scope=\"col\">release</th><th scope=\"col\">create</th><th "
      "scope=\"col\">destroy</th><th scope=\"col\">map</th><th scope=\"col\">unmap</th><th "
      "scope=\"col\">retries</"
      "th>"
      "<th scope=\"col\">failures</th><th scope=\"col\">ns/op</th></tr></thead><tbody>\n";
  char cell[64];
  for (const replay::recipe_result& r : shown.results) {
    const bool is_drawn = std::any_of(shown.recipes.begin(), shown.recipes.end(),
                                      [&](const recipe_run& d) { return d.recipe == r.recipe; });
    page += std::string("<tr") + (is_drawn ? " class=\"drawn\"" : "") + "><th scope=\"row\">" +
            markup_text(r.recipe) + "</th>";
    std::snprintf(cell, sizeof cell, "<td>%.1f</td><td>%.3f</td><td>%.1f</td>", replay::mib(r.peak_reserved),
                  replay::ratio(r.peak_reserved, shown.peak_live), replay::mib(r.cached_at_end));
    page += cell;
    for (const auto calls : {r.calls.acquire, r.calls.release, r.calls.create, r.calls.destroy, r.calls.map,
                             r.calls.unmap, r.retries, std::uintmax_t{r.failures}})
      (page += "<td>") += count_text(calls) += "</td>";
    std::snprintf(cell, sizeof cell, "<td>%.1f</td></tr>\n", r.nanoseconds);
    page += cell;
  }
  std::snprintf(cell, sizeof cell, "%.1f", replay::mib(shown.peak_live));
  page +=
      "<tr><th scope=\"row\">(peak live)</th><td>" + std::string(cell) +
      "</td><td>1.000</td><td></td><td></td><td></td><td></td><td></td><td></td><td></td><td></td><td></td>"
      "<td></td></tr>\n</tbody></table></div>\n";
  for (const replay::recipe_result& r : shown.results) {
    if (r.failed_sleeps != 0)
      page += "<p class=\"hint\">" + markup_text(replay::failed_sleeps_text(r, shown.sleeps)) + "</p>\n";
  }
  page += "</section>\n";
}

/// The meanings of words. Sleep is explained if the program has it.
std::string words_section(bool sleeps) {
  std::string text =
      "<section aria-labelledby=\"words-title\">\n<h2 id=\"words-title\">Words</h2>\n<dl>"
      "<dt>requested</dt><dd>bytes as the program requested them</dd>"
      "<dt>live</dt><dd>in blocks that are allocated; a block may be larger than its request</dd>"
      "<dt>pending</dt><dd>freed, but a stream still uses the block</dd>"
      "<dt>cached</dt><dd>free, and kept for later requests</dd>"
      "<dt>non-releasable</dt><dd>cached, but cannot go back to the device, because a live block shares the "
      "segment or page</dd>"
      "<dt>reserved</dt><dd>acquired from the device: live, pending and cached</dd>"
      "<dt>/ peak live</dt><dd>peak reserved divided by peak live, as requested</dd>";
  if (sleeps)
    text +=
        "<dt>asleep</dt><dd>addresses that keep their blocks while their memory is back at the device; not "
        "reserved</dd>";
  return text + "</dl>\n</section>\n";
}

}  // namespace

std::string replay::html_report(const picture& shown) {
  std::string page;
  add_head(page, shown);
  add_time(page, shown);
  add_maps(page, shown);
  add_table(page, shown);
  page += words_section(shown.sleeps != 0);
  page +=
      "</main>\n<script type=\"application/json\" id=\"data\">" + report_data(shown) + "</script>\n<script>";
  page += report::script_common;
  page += report::script_time;
  page += report::script_map;
  page += "</script>\n</body>\n</html>\n";
  return page;
}
