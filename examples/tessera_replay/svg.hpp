// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tessera/core/bytes.hpp>

#include "memory_map.hpp"

namespace replay {

using namespace tessera;
using namespace tessera::trace;

/// Escapes text for HTML and SVG elements and quoted attributes. Control characters become spaces.
[[nodiscard]] inline std::string markup_text(std::string_view text) {
  std::string safe;
  for (const char c : text) {
    switch (c) {
      case '&': safe += "&amp;"; break;
      case '<': safe += "&lt;"; break;
      case '>': safe += "&gt;"; break;
      case '"': safe += "&quot;"; break;
      case '\'': safe += "&#39;"; break;
      default: safe += static_cast<unsigned char>(c) < ' ' || c == '\x7f' ? ' ' : c;
    }
  }
  return safe;
}

/// Formats a number in units of `unit`, rounded to `decimals` digits. The same on every machine.
///   Requires:  unit > 0, decimals <= 4; units above 2^50 are approximate
[[nodiscard]] inline std::string decimal_text(std::size_t number, std::size_t unit, int decimals) {
  for (; unit >> 50 != 0; unit /= 2) number /= 2;
  std::size_t scale = 1;
  for (int i = 0; i < decimals; ++i) scale *= 10;
  std::size_t whole = number / unit;
  std::size_t part = (number % unit * scale + unit / 2) / unit;
  if (part == scale) {
    ++whole;
    part = 0;
  }
  std::string text = std::to_string(whole);
  if (decimals == 0) return text;
  const std::string digits = std::to_string(part);
  return text + '.' + std::string(static_cast<std::size_t>(decimals) - digits.size(), '0') + digits;
}

/// Formats an integer with a comma every three digits.
[[nodiscard]] inline std::string count_text(std::size_t number) {
  std::string text = std::to_string(number);
  for (std::size_t at = text.size(); at > 3;) text.insert(at -= 3, 1, ',');
  return text;
}

/// The contents of a picture of memory over time.
struct svg_picture {
  struct line {
    std::string name;
    const timeline* over;  ///< all of the same program
  };
  std::string headline;
  std::string subtitle;
  std::string bound_name;       ///< the label of the lower bound
  std::size_t lower_bound = 0;  ///< bytes
  std::vector<line> lines;      ///< at least one; the requested bytes of the first are drawn as an area
};

/// Line colors on light and dark backgrounds, distinguishable with red-green blindness. They repeat after the
/// last.
inline constexpr std::array<std::pair<std::string_view, std::string_view>, 8> line_colors{
    {{"#0067a6", "#58aaf0"},
     {"#00805e", "#3cc39a"},
     {"#a2478a", "#e592cb"},
     {"#946200", "#e3b341"},
     {"#2b7ea6", "#9bd7f2"},
     {"#b84a00", "#f0935c"},
     {"#6b6f76", "#a9b0b8"},
     {"#2b2f36", "#e6e9ee"}}};

/// Formats bytes for an axis: 512 MiB, 1 GiB, 1.5 GiB.
[[nodiscard]] inline std::string tick_text(std::size_t bytes) {
  if (bytes == 0) return "0";
  std::string text = format_bytes(bytes).text();
  const std::size_t unit = text.find(' ');
  const std::size_t point = text.find('.');
  if (point >= unit) return text;
  const std::size_t last = text.find_last_not_of('0', unit - 1);
  return text.substr(0, last == point ? point : last + 1) + text.substr(unit);
}

/// Writes a picture as SVG without scripts, for light, dark and narrow pages. The same bytes on every
/// machine.
///
///     using namespace tessera::trace;
///     timeline over;
///     for (int i = 0; i < 3; ++i) (void)pool.allocate(30_MiB), over.note(pool.current_usage());
///     const svg_picture shown{"three blocks", "", "live", pool.current_usage().allocated, {{"pytorch", &over}}};
///     std::puts(svg_writer::write(shown).c_str());
class svg_writer {
 public:
  [[nodiscard]] static std::string write(const svg_picture& shown) { return svg_writer(shown).text(); }

 private:
  // In tenths of a pixel, so that the output does not depend on floating-point formatting.
  static constexpr std::size_t left = 760, top = 820, bottom = 3640, full_height = 4000;

  explicit svg_writer(const svg_picture& shown)
      : shown_(shown), events_(std::max<std::size_t>(1, shown.lines.front().over->events())) {
    max_ = std::max<std::size_t>(1, shown.lower_bound);
    std::size_t letters = shown.bound_name.size();
    for (const auto& line : shown.lines) {
      max_ = (std::max)(max_, line.over->worst().reserved);
      letters = (std::max)(letters, line.name.size());
    }
    const std::size_t labels = std::max<std::size_t>(1960, 360 + 85 * letters);
    full_width_ = std::max<std::size_t>({7600, left + 3000 + labels, 480 + 105 * shown.headline.size()});
    right_ = full_width_ - labels;
  }

  [[nodiscard]] static std::string tenths(std::size_t n) { return decimal_text(n, 10, n % 10 == 0 ? 0 : 1); }
  [[nodiscard]] std::size_t x(std::size_t event) const noexcept {
    return left + static_cast<std::size_t>(static_cast<double>(right_ - left) * static_cast<double>(event) /
                                           static_cast<double>(events_));
  }
  [[nodiscard]] std::size_t y(std::size_t bytes) const noexcept {
    constexpr auto height = static_cast<double>(bottom - top) / 1.05;
    const double share = static_cast<double>((std::min)(bytes, max_)) / static_cast<double>(max_);
    return bottom - static_cast<std::size_t>(height * share);
  }

  [[nodiscard]] std::string text() {
    put("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" + tenths(full_width_) + "\" height=\"" +
        tenths(full_height) + "\" viewBox=\"0 0 " + tenths(full_width_) + ' ' + tenths(full_height) +
        "\" role=\"img\" aria-labelledby=\"title about\">\n<title id=\"title\">" +
        markup_text(shown_.headline) + "</title>\n<desc id=\"about\">" + markup_text(description()) +
        "</desc>\n");
    style();
    put("<rect class=\"ground\" width=\"" + tenths(full_width_) + "\" height=\"" + tenths(full_height) +
        "\" rx=\"6\"/>\n");
    words("headline", 240, 350, shown_.headline);
    words("quiet", 240, 570, shown_.subtitle);
    axes();
    const timeline& first = *shown_.lines.front().over;
    area("peaks", first, [](const timeline::bucket& b) { return b.requested.max; });
    area("lives", first, [](const timeline::bucket& b) { return b.requested.min; });
    put("<path class=\"bound\" d=\"M", tenths(left), ' ', tenths(y(shown_.lower_bound)), 'H', tenths(right_),
        "\"/>\n");
    for (std::size_t i = 0; i < shown_.lines.size(); ++i) reserved(i);
    labels();
    put("</svg>\n");
    return std::move(out_);
  }

  template <typename... Parts>
  void put(const Parts&... parts) {
    ((out_ += parts), ...);
  }
  void words(const std::string& kind, std::size_t at_x, std::size_t at_y, std::string_view text) {
    put("<text class=\"", kind, "\" x=\"", tenths(at_x), "\" y=\"", tenths(at_y), "\">", markup_text(text),
        "</text>\n");
  }
  [[nodiscard]] std::string over_bound(std::size_t bytes) const {
    if (shown_.lower_bound == 0) return {};
    return ", " + decimal_text(bytes, shown_.lower_bound, 2) + " \u00d7";
  }

  [[nodiscard]] std::string description() const {
    std::string text =
        shown_.subtitle + ". " + shown_.bound_name + ": " + format_bytes(shown_.lower_bound).text();
    for (const auto& line : shown_.lines)
      text += "; " + line.name + ": peak reserved " + format_bytes(line.over->worst().reserved).text() +
              over_bound(line.over->worst().reserved);
    return text + '.';
  }

  void style() {
    put("<style>\n"
        "text{font-family:system-ui,-apple-system,\"Segoe UI\",Roboto,\"Helvetica Neue\",Arial,sans-serif;"
        "font-size:13px;font-variant-numeric:tabular-nums}\n"
        ".headline{font-size:17px;font-weight:600}.name{font-weight:600}.at-x{text-anchor:middle}"
        ".at-y{text-anchor:end}\n"
        "path{fill:none}.line{stroke-width:1.8;stroke-linejoin:round}.bound{stroke-width:1.2;"
        "stroke-dasharray:5 4}.grid{shape-rendering:crispEdges}\n");
    palette(false);
    put("@media (prefers-color-scheme:dark){\n");
    palette(true);
    put("}\n</style>\n");
  }
  void palette(bool dark) {
    put(dark ? ".ground{fill:#14171c}text{fill:#e6e9ee}.quiet,.at-x,.at-y{fill:#9aa3ae}.grid{stroke:#2b3038}"
               ".bound{stroke:#c3cad3}.lives{fill:#48576b}.peaks{fill:#2e3846}\n"
             : ".ground{fill:#fff}text{fill:#1c2128}.quiet,.at-x,.at-y{fill:#5c6670}.grid{stroke:#e4e7eb}"
               ".bound{stroke:#444c56}.lives{fill:#b9c6d6}.peaks{fill:#dde4ec}\n");
    for (std::size_t i = 0; i < (std::min)(shown_.lines.size(), line_colors.size()); ++i) {
      const auto color = std::string(dark ? line_colors[i].second : line_colors[i].first);
      const std::string kind = '.' + color_of(i);
      put(kind, "{stroke:", color, "}text", kind, "{fill:", color, ";stroke:none}\n");
    }
  }
  [[nodiscard]] static std::string color_of(std::size_t line) {
    std::string name = "c";
    return name += std::to_string(line % line_colors.size());
  }

  void axes() {
    std::size_t step = 1;
    while (max_ / step >= 5) step *= 2;
    for (std::size_t i = 0; i <= max_ / step; ++i) {
      const std::size_t bytes = i * step;
      put("<path class=\"grid\" d=\"M", tenths(left), ' ', tenths(y(bytes)), 'H', tenths(right_), "\"/>\n");
      words("at-y", left - 80, y(bytes) + 45, tick_text(bytes));
    }
    step = 1;
    for (std::size_t i = 0; events_ / step >= 6; ++i)
      step = step / (i % 3 == 2 ? 2 : 1) * (i % 3 == 2 ? 5 : 2);
    for (std::size_t event = 0; event <= events_; event += step)
      words("at-x", x(event), bottom + 220, count_text(event) + (event == 0 ? " events" : ""));
  }

  /// Draws the area under a series, one step per bucket.
  template <typename F>
  void area(const char* kind, const timeline& over, F height) {
    put("<path class=\"", kind, "\" d=\"M", tenths(left), ' ', tenths(bottom));
    const auto& all = over.buckets();
    for (std::size_t i = 0; i < all.size(); ++i) {
      put('V', tenths(y(height(all[i]))));
      put('H', tenths(x((std::min)(events_, (i + 1) * over.width()))));
    }
    put('V', tenths(bottom), "Z\"/>\n");
  }

  /// Draws a line through the minimum and maximum of each bucket.
  void reserved(std::size_t number) {
    const timeline& over = *shown_.lines[number].over;
    put("<path class=\"line ", color_of(number), "\" d=\"M", tenths(left), ' ', tenths(bottom));
    std::size_t at = bottom;
    const auto go_to = [&](std::size_t height) {
      if (height != at) put('V', tenths(height));
      at = height;
    };
    std::size_t drawn_to = left;
    for (std::size_t i = 0; i < over.buckets().size(); ++i) {
      const timeline::range r = over.buckets()[i].reserved;
      const std::size_t low = y(r.min), high = y(r.max);
      const bool flat = low == at && high == at;
      if (!flat && drawn_to != x(i * over.width())) put('H', tenths(drawn_to = x(i * over.width())));
      const bool low_first = (low > at ? low - at : at - low) < (high > at ? high - at : at - high);
      go_to(low_first ? low : high);
      go_to(low_first ? high : low);
    }
    put('H', tenths(right_), "\"/>\n");
  }

  /// Labels the lines at their ends, without overlap.
  void labels() {
    struct label {
      std::size_t from, at, line;
    };
    std::vector<label> all;
    const auto add = [&all](std::size_t from, std::size_t line) {
      const auto above = [](const label& a, const label& b) { return a.from < b.from; };
      const label made{from, 0, line};
      all.insert(std::upper_bound(all.begin(), all.end(), made, above), made);
    };
    add(y(shown_.lower_bound), shown_.lines.size());
    for (std::size_t i = 0; i < shown_.lines.size(); ++i) {
      const auto& buckets = shown_.lines[i].over->buckets();
      add(buckets.empty() ? bottom : y(buckets.back().reserved.max), i);
    }
    const std::size_t apart = std::min<std::size_t>(380, (bottom - top + 300) / all.size());
    for (std::size_t i = 0; i < all.size(); ++i)
      all[i].at = i == 0 ? all[i].from : (std::max)(all[i].from, all[i - 1].at + apart);
    std::size_t limit = bottom - 100;
    for (std::size_t i = all.size(); i-- > 0; limit = all[i].at - (std::min)(apart, all[i].at))
      all[i].at = (std::min)(all[i].at, limit);
    for (const label& l : all) {
      const bool is_bound = l.line == shown_.lines.size();
      const std::string color = is_bound ? "bound" : color_of(l.line);
      const std::size_t bytes = is_bound ? shown_.lower_bound : shown_.lines[l.line].over->worst().reserved;
      put("<path class=\"", color, "\" d=\"M", tenths(right_), ' ', tenths(l.from), 'L', tenths(right_ + 140),
          ' ', tenths(l.at), "\"/>\n");
      words(is_bound ? "name" : "name " + color, right_ + 200, l.at + 20,
            is_bound ? shown_.bound_name : shown_.lines[l.line].name);
      words("quiet", right_ + 200, l.at + 180,
            std::string(format_bytes(bytes).text()) + (is_bound ? "" : over_bound(bytes)));
    }
  }

  const svg_picture& shown_;
  std::size_t events_;
  std::size_t max_ = 1;  // bytes
  std::size_t full_width_, right_;
  std::string out_;
};

}  // namespace replay
