// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include <tessera/core/bytes.hpp>
#include <tessera/trace/recording.hpp>

#include "page/drawing.hpp"
#include "page/moments.hpp"
#include "page/parts.hpp"
#include "page/read_runs.hpp"
#include "page/show.hpp"
#include "page/style.hpp"
#include "report.hpp"
#include "stream_names.hpp"
#include "svg.hpp"

namespace {

using namespace replay::report;
using replay::count_text;
using replay::decimal_text;
using replay::drawn_run;
using replay::markup_text;
using replay::picture;

/// The request at the mapped event, and the largest free block.
std::string cause(const drawn_run& d, const picture& shown) {
  const auto& asked = shown.source->events[d.mapped_event];
  using kind = tessera::trace::event::kind;
  if (!d.has_cause || (asked.what != kind::allocate && asked.what != kind::refused)) return {};
  std::string text = "The event asks for ";
  text += bytes_text(asked.bytes) + " on " +
          replay::stream_names(shown.source->events).name(asked.stream.handle) +
          (d.failures == 0 ? "; before it, " : "; ");
  if (d.largest_free == 0) return text + "nothing was free.";
  return text + "the largest free block had " + bytes_text(d.largest_free) +
         (d.largest_free < asked.bytes ? ", too little." : ", but could not serve it.");
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
  const drawn_run& first = shown.runs.front();
  const auto& sums = first.sums;
  std::string text = "Peak live is ";
  text += bytes_text(shown.peak_live) +
          (shown.sleeps == 0 ? ", as requested: no allocator can reserve less. " : ", as requested. ") +
          markup_text(first.is == run_kind::recorded ? "The recorded run" : first.name);
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
  if (shown.events_dropped != 0)
    text += " The history was full: " + plural(shown.events_dropped, "event", "events") +
            " before its first " + (shown.events_dropped == 1 ? "was" : "were") + " dropped.";
  return text;
}

std::string replay::report::map_caption(const drawn_run& d, const picture& shown) {
  const auto& sums = d.sums;
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
  return text + ". " + cause(d, shown);
}

std::string replay::headline(const picture& shown) {
  const drawn_run& first = shown.runs.front();
  const auto peak = [](const drawn_run& d) { return d.over.worst().reserved; };
  // The recorded run begins with its cache, so the recipes are compared with each other.
  const bool has_others = first.is == run_kind::recorded && shown.runs.size() > 1;
  const auto best = std::min_element(shown.runs.begin() + (has_others ? 1 : 0), shown.runs.end(),
                                     [&](const drawn_run& a, const drawn_run& b) {
                                       return std::pair(a.failures, peak(a)) < std::pair(b.failures, peak(b));
                                     });
  std::string text;
  if (first.is == run_kind::recorded) {
    text = "The recorded run reserved " + times(peak(first), shown) + " peak live";
    if (first.failures != 0) text += ", and " + plural(first.failures, "request", "requests") + " failed";
    if (!has_others) return text;
    text += "; without a cache at the start, " + best->name + " reserves " + times(peak(*best), shown);
    return best->failures == 0 ? text
                               : text + ", and " + plural(best->failures, "request fails", "requests fail");
  }
  if (first.failures != 0) {
    text = first.name + " runs out of memory " + plural(first.failures, "time", "times") + " with " +
           bytes_text(shown.capacity);
    return best->failures == 0 ? text + "; " + best->name + " completes" : text;
  }
  const std::string ours = times(peak(first), shown), less = times(peak(*best), shown);
  text = first.name + " reserves " + ours + " peak live";
  if (less != ours) return text + ", " + best->name + ' ' + less;
  if (shown.runs.size() == 1) return text;
  // None reserves less: how much more the others do tells whether the choice of a recipe matters.
  const auto worst =
      std::max_element(shown.runs.begin(), shown.runs.end(), [&](const drawn_run& a, const drawn_run& b) {
        return std::pair(a.failures, peak(a)) < std::pair(b.failures, peak(b));
      });
  if (worst->failures != 0)
    return text + "; " + worst->name + " runs out of memory with " + bytes_text(shown.capacity);
  const std::string more = times(peak(*worst), shown);
  if (more != ours) return text + ", and none less: " + worst->name + ' ' + more;
  return text + (shown.runs.size() == 2 ? ", and so does " + shown.runs.back().name
                                        : ", and so do the " + number(shown.runs.size() - 1) + " others");
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
    page += dark ? replay::page::dark_colors : replay::page::light_colors;
  };
  colors(false);
  page += "}\n@media (prefers-color-scheme:dark){:root:not([data-theme=light]){";
  colors(true);
  page += "}}\n:root[data-theme=dark]{";
  colors(true);
  page += '}';
  page += replay::page::style;
  page += "</style>\n</head>\n<body>\n<main>\n<div class=\"top\"><p>" + markup_text(shown.trace) + ", " +
          plural(shown.source->events.size(), "event", "events") + ", a device of " +
          bytes_text(shown.capacity) + "</p><button id=\"theme\" type=\"button\">Dark</button></div>\n<h1>" +
          markup_text(replay::headline(shown)) + "</h1>\n<p class=\"lead\">" + lead(shown) + "</p>\n";
}

void add_table(std::string& page, const picture& shown) {
  page +=
      "<section aria-labelledby=\"table-title\">\n<div class=\"bar\"><h2 id=\"table-title\">All recipes on "
      "this "
      "trace</h2></div>\n<div class=\"scroll\" tabindex=\"0\" role=\"group\" aria-label=\"Comparison of "
      "recipes\">"
      "<table id=\"compare\"><thead><tr><th scope=\"col\">recipe</th><th scope=\"col\">peak reserved, "
      "MiB</th><th "
      "scope=\"col\">/ peak live</th><th scope=\"col\">cached at end, MiB</th>"
      "<th scope=\"col\">acquire</th><th scope=\"col\">release</th><th scope=\"col\">create</th><th "
      "scope=\"col\">destroy</th><th scope=\"col\">map</th><th scope=\"col\">unmap</th><th "
      "scope=\"col\">retries</"
      "th>"
      "<th scope=\"col\">failures</th><th scope=\"col\">ns/op</th></tr></thead><tbody>\n";
  char cell[64];
  for (const replay::recipe_result& r : shown.results) {
    const bool is_drawn = std::any_of(shown.runs.begin(), shown.runs.end(),
                                      [&](const drawn_run& d) { return d.name == r.recipe; });
    page += std::string("<tr") + (is_drawn ? " class=\"drawn\"" : "") + "><th scope=\"row\">" +
            markup_text(r.recipe) + "</th>";
    std::snprintf(cell, sizeof cell, "<td>%.1f</td><td>%.3f</td><td>%.1f</td>", replay::mib(r.peak_reserved),
                  replay::ratio(r.peak_reserved, shown.peak_live), replay::mib(r.cached_at_end));
    page += cell;
    for (const auto calls :
         {r.calls.acquire, r.calls.release, r.calls.create, r.calls.destroy, r.calls.map, r.calls.unmap})
      (page += "<td>") += count_text(calls) += "</td>";
    // A history tells neither retries nor times.
    (page += "<td>") += r.as_recorded ? "\u2013" : count_text(r.retries);
    (page += "</td><td>") += count_text(r.failures);
    std::snprintf(cell, sizeof cell, "%.1f", r.nanoseconds);
    (page += "</td><td>") += r.as_recorded ? "\u2013" : cell;
    page += "</td></tr>\n";
    if (r.as_recorded)
      page +=
          "<tr><th scope=\"rowgroup\" colspan=\"13\" class=\"group\">replayed, without a cache at the "
          "start</th></tr>\n";
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
  page += "<div id=\"view\"><noscript><p class=\"hint\">The pictures need JavaScript.</p>\n<dl>";
  for (const drawn_run& d : shown.runs)
    page += "<dt>" + markup_text(d.name) + "</dt><dd>" + map_caption(d, shown) + "</dd>";
  page += "</dl></noscript></div>\n";
  add_table(page, shown);
  page += words_section(shown.sleeps != 0);
  page += "</main>\n<script type=\"application/json\" id=\"data\">";
  page += report_data(shown);
  page += "</script>\n<script>";
  for (const char* const part : {page::read_runs, page::moments, page::drawing, page::parts, page::show})
    page += part;
  page +=
      "addEventListener(\"error\", e => { document.documentElement.dataset.status = \"error: \" + e.message; "
      "});\n"
      "const shown = show(JSON.parse(document.getElementById(\"data\").textContent), "
      "document.getElementById(\"view\"));\n"
      "document.documentElement.dataset.status ||= \"drawn\";\n";
  page += "</script>\n</body>\n</html>\n";
  return page;
}
