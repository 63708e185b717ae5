// SPDX-License-Identifier: Apache-2.0
#include "report.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <tessera/trace/recording.hpp>
#include "memory_map.hpp"
#include "snapshot_recording.hpp"

namespace {

using replay::memory_map;
using replay::recipe_run;
using bucket = replay::timeline::bucket;

/// Formats a JSON string that is safe in a script element.
std::string json_quoted(std::string_view text) {
  std::string safe = "\"";
  for (const char c : text) {
    const auto code = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' || code < ' ') {
      constexpr const char* digits = "0123456789abcdef";
      safe += "\\u00";
      safe += digits[code / 16];
      safe += digits[code % 16];
    } else {
      safe += c;
    }
  }
  return safe + '"';
}

std::string joined(std::initializer_list<std::string_view> parts) {
  std::string text;
  for (const std::string_view part : parts) text += part;
  return text;
}

/// Formats a JSON array of f(element).
template <typename Row, typename F>
std::string list(const Row& row, F f) {
  std::string text = "[";
  for (const auto& each : row) {
    if (text.size() > 1) text += ',';
    text += f(each);
  }
  return text += ']';
}

/// Formats a number as JSON; as a string if JavaScript would round it.
std::string number(std::uint64_t n) {
  std::string text = std::to_string(n);
  return n < std::uint64_t{1} << 53 ? text : json_quoted(text);
}
void add(std::string& row, std::initializer_list<std::uint64_t> more) {
  for (const std::uint64_t n : more) {
    if (!row.empty()) row += ',';
    row += number(n);
  }
}

/// Encodes minima as differences from the previous bucket, and maxima as differences from the minimum.
template <typename F>
std::string series(const std::vector<bucket>& buckets, F part) {
  std::size_t last = 0;
  const std::string minima = list(buckets, [&](const bucket& b) {
    const std::size_t now = part(b).min;
    std::string text(now < last ? "-" : "");
    text += std::to_string(now < last ? last - now : now - last);
    last = now;
    return text;
  });
  return joined({"[", minima, ",",
                 list(buckets, [&](const bucket& b) { return std::to_string(part(b).max - part(b).min); }),
                 "]"});
}

std::string all_series(const recipe_run& d) {
  const auto& all = d.over.buckets();
  return joined({"{\"requested\":", series(all, [](const bucket& b) { return b.requested; }),
                 ",\"live\":", series(all, [](const bucket& b) { return b.live; }),
                 ",\"cached\":", series(all, [](const bucket& b) { return b.cached; }),
                 ",\"reserved\":", series(all, [](const bucket& b) { return b.reserved; }),
                 replay::ever_pending(d) ? ",\"pending\":" : "",
                 replay::ever_pending(d) ? series(all, [](const bucket& b) { return b.pending; }) : "",
                 replay::ever_asleep(d) ? ",\"asleep\":" : "",
                 replay::ever_asleep(d) ? series(all, [](const bucket& b) { return b.asleep; }) : "", "}"});
}

/// Encodes segments as [cells, bytes, stream, pool, in a range, live blocks, non-releasable bytes, private
/// pool]. Encodes cells by kind and bytes; used cells also have id, event, requested bytes, stream and
/// source line; merged cells have blocks, live and non-releasable bytes. Cells that sleep are used cells; their
/// requested bytes are 0 if they are not one block that is in use.
std::string map_data(const recipe_run& d, const tessera::trace::recording& source) {
  std::string segments, kinds, used, many, lines, line_of;
  std::map<std::string, std::size_t> number_of_line;
  for (std::size_t i = 0; i < d.map.cells.size();) {
    const std::size_t in = d.map.cells[i].segment;
    const memory_map::segment& s = d.map.segments[in];
    std::size_t cells = 0;
    for (; i < d.map.cells.size() && d.map.cells[i].segment == in; ++i) ++cells;
    std::string row;
    add(row, {cells, s.bytes, s.stream.handle, s.pool, s.in_range, s.live_blocks, s.non_releasable,
              s.private_pool});
    segments += joined({segments.empty() ? "[" : ",[", row, "]"});
  }
  for (const memory_map::cell& c : d.map.cells) {
    kinds += "lpfims"[static_cast<std::size_t>(c.is)];
    if (c.is == memory_map::use::live || c.is == memory_map::use::pending ||
        c.is == memory_map::use::asleep) {
      const tessera::trace::event& e = source.events[c.event];
      add(used, {e.id, c.event, c.requested, e.stream.handle});
      if (source.origins.empty()) continue;
      const auto [line, is_new] =
          number_of_line.try_emplace(replay::origin_text(source, e.id), number_of_line.size());
      if (is_new) (lines += lines.empty() ? "" : ",") += json_quoted(line->first);
      add(line_of, {line->second});
    } else if (c.is == memory_map::use::several) {
      add(many, {c.blocks, c.live, c.non_releasable});
    }
  }
  return joined({"{\"segments\":[", segments, "],\"kinds\":\"", kinds, "\",\"bytes\":",
                 list(d.map.cells, [](const memory_map::cell& c) { return number(c.bytes); }), ",\"used\":[",
                 used, "],\"many\":[", many, source.origins.empty() ? "]" : "],\"lines\":[", lines,
                 source.origins.empty() ? "" : "],\"at\":[", line_of, source.origins.empty() ? "}" : "]}"});
}

}  // namespace

bool replay::ever_asleep(const recipe_run& shown) {
  const auto& all = shown.over.buckets();
  return std::any_of(all.begin(), all.end(), [](const bucket& b) { return b.asleep.max != 0; });
}

bool replay::ever_pending(const recipe_run& shown) {
  const auto& all = shown.over.buckets();
  return std::any_of(all.begin(), all.end(), [](const bucket& b) { return b.pending.max != 0; });
}

std::vector<std::uint64_t> replay::private_pools(const picture& shown) {
  std::set<std::uint64_t> found;
  for (const recipe_run& d : shown.recipes) {
    for (const memory_map::segment& s : d.map.segments) {
      if (s.private_pool != 0) found.insert(s.private_pool);
    }
  }
  return {found.begin(), found.end()};
}

std::string replay::report_data(const picture& shown) {
  const auto recipe = [&](const recipe_run& d) {
    return joined({"{\"name\":", json_quoted(d.recipe), ",\"width\":", number(d.over.width()),
                   ",\"moment\":", number(d.mapped_event), ",\"series\":", all_series(d),
                   ",\"map\":", map_data(d, *shown.source), "}"});
  };
  return joined({"{\"events\":", number(shown.source->events.size()), ",\"peak\":", number(shown.peak_live),
                 ",\"start\":", number(shown.events_at_start), ",\"pools\":",
                 list(private_pools(shown), number), ",\"recipes\":", list(shown.recipes, recipe), "}"});
}
