// SPDX-License-Identifier: Apache-2.0
#include "report_data.hpp"

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include <tessera/trace/event.hpp>
#include <tessera/trace/memory_map.hpp>
#include <tessera/trace/timeline.hpp>

namespace {

using replay::drawn;
using tessera::trace::memory_map;
using bucket = tessera::trace::timeline::bucket;

/// `text` as a JSON string that may stand in a script element.
std::string quoted(std::string_view text) {
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

/// A JSON array of what f gives for each of a row.
template <typename Row, typename F>
std::string list(const Row& row, F f) {
  std::string text = "[";
  for (const auto& each : row) {
    if (text.size() > 1) text += ',';
    text += f(each);
  }
  return text + ']';
}

/// The least as differences from bucket to bucket, and the most as differences from the least.
template <typename F>
std::string series(const std::vector<bucket>& buckets, F part) {
  std::size_t last = 0;
  const auto difference = [&last](std::size_t now) {
    const bool grew = now >= last;
    const std::string text = (grew ? "" : "-") + std::to_string(grew ? now - last : last - now);
    last = now;
    return text;
  };
  return '[' + list(buckets, [&](const bucket& b) { return difference(part(b).least); }) + ',' +
         list(buckets, [&](const bucket& b) { return std::to_string(part(b).most - part(b).least); }) + ']';
}

std::string all_series(const drawn& d) {
  const auto& buckets = d.over.buckets();
  std::string text = "{\"requested\":" + series(buckets, [](const bucket& b) { return b.requested; }) +
                     ",\"live\":" + series(buckets, [](const bucket& b) { return b.live; }) +
                     ",\"cached\":" + series(buckets, [](const bucket& b) { return b.cached; }) +
                     ",\"reserved\":" + series(buckets, [](const bucket& b) { return b.reserved; });
  if (replay::ever_pending(d))
    text += ",\"pending\":" + series(buckets, [](const bucket& b) { return b.pending; });
  return text + '}';
}

std::string numbers(std::initializer_list<std::size_t> row) {
  std::string text;
  for (const std::size_t n : row) {
    if (!text.empty()) text += ',';
    text += std::to_string(n);
  }
  return text;
}

/// Segments as [cells, bytes, stream, pool, in a range, live blocks, bytes pinned]; cells by their kinds and bytes, with
/// id, event, requested bytes and stream of what is used, and blocks, live and pinned bytes of what stands for several.
std::string map_data(const drawn& d, const tessera::trace::recording& source) {
  std::string segments = "[", kinds, used, many;
  for (std::size_t i = 0; i < d.map.cells.size();) {
    const std::size_t number = d.map.cells[i].segment;
    const memory_map::segment& s = d.map.segments[number];
    std::size_t cells = 0;
    for (; i < d.map.cells.size() && d.map.cells[i].segment == number; ++i) ++cells;
    if (segments.size() > 1) segments += ',';
    segments +=
        '[' + numbers({cells, s.bytes, s.stream.handle, s.pool, s.in_range, s.live_blocks, s.pinned}) + ']';
  }
  for (const memory_map::cell& c : d.map.cells) {
    kinds += "lpfim"[static_cast<std::size_t>(c.is)];
    if (c.is == memory_map::use::live || c.is == memory_map::use::pending) {
      const tessera::trace::event& e = source.events[c.event];
      used += (used.empty() ? "" : ",") + numbers({e.id, c.event, c.requested, e.stream.handle});
    } else if (c.is == memory_map::use::several) {
      many += (many.empty() ? "" : ",") + numbers({c.blocks, c.live, c.pinned});
    }
  }
  return "{\"segments\":" + segments + "],\"kinds\":\"" + kinds + "\",\"bytes\":" +
         list(d.map.cells, [](const memory_map::cell& c) { return std::to_string(c.bytes); }) +
         ",\"used\":[" + used + "],\"many\":[" + many + "]}";
}

}  // namespace

bool replay::ever_pending(const drawn& shown) {
  const auto& all = shown.over.buckets();
  return std::any_of(all.begin(), all.end(), [](const bucket& b) { return b.pending.most != 0; });
}

std::string replay::report_data(const picture& shown) {
  return "{\"events\":" + std::to_string(shown.source->events.size()) +
         ",\"peak\":" + std::to_string(shown.peak_live) + ",\"recipes\":" +
         list(shown.recipes,
              [&](const drawn& d) {
                return "{\"name\":" + quoted(d.recipe) + ",\"width\":" + std::to_string(d.over.width()) +
                       ",\"moment\":" + std::to_string(d.moment) + ",\"series\":" + all_series(d) +
                       ",\"map\":" + map_data(d, *shown.source) + '}';
              }) +
         "}";
}
