// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tessera/core/bytes.hpp>

#include "rank_summary.hpp"
#include "svg.hpp"

namespace replay {

/// Draws the peaks of all ranks as SVG without scripts: above from 0 on, and below the difference from the median,
/// because ranks often differ by a few percent. The same bytes on every machine.
class rank_picture {
 public:
  ///   Requires:  a rank was measured
  [[nodiscard]] static std::string draw(const rank_summary& job, const std::string& headline,
                                        const std::string& subtitle) {
    return rank_picture(job).text(headline, subtitle);
  }

 private:
  // In tenths of a pixel, so that the output does not depend on floating-point formatting.
  static constexpr std::size_t left = 900, right = 7300, top = 900, bottom = 3500;
  static constexpr std::size_t low_top = 4250, low_bottom = 5450, full_width = 10000, full_height = 6000;

  explicit rank_picture(const rank_summary& job) : job_(job) {
    max_ = std::max<std::size_t>({1, job.reserved.max, job.live.max});
    // A device that is far larger than the job would flatten all bars.
    has_capacity_ = job.capacity && *job.capacity / 2 < max_;
    if (has_capacity_) max_ = std::max(max_, *job.capacity);
    middle_ = low_y(job.reserved.median);
  }

  [[nodiscard]] static std::string tenths(std::size_t n) { return decimal_text(n, 10, n % 10 == 0 ? 0 : 1); }
  [[nodiscard]] static std::size_t scaled(std::size_t part, std::size_t whole, std::size_t length) {
    return static_cast<std::size_t>(
        static_cast<double>(length) *
        (static_cast<double>(std::min(part, whole)) / static_cast<double>(whole)));
  }
  [[nodiscard]] std::size_t x(std::size_t line) const {
    return left + scaled(line, job_.lines.size(), right - left);
  }
  /// The end of a rank's bar. Bars touch each other if they are narrow.
  [[nodiscard]] std::size_t x_end(std::size_t line) const {
    const std::size_t width = x(line + 1) - x(line);
    return x(line + 1) - (width >= 60 ? std::min<std::size_t>(width / 5, 120) : 0);
  }
  [[nodiscard]] std::size_t center(std::size_t line) const { return (x(line) + x_end(line)) / 2; }
  [[nodiscard]] std::size_t y(std::size_t bytes) const {
    return bottom - scaled(bytes, max_, (bottom - top) * 20 / 21);
  }
  /// The height in the lower part, whose axis goes from the least rank to the worst.
  [[nodiscard]] std::size_t low_y(std::size_t bytes) const {
    const std::size_t range = std::max<std::size_t>(1, job_.reserved.max - job_.reserved.min);
    return low_bottom - scaled(bytes - job_.reserved.min, range, low_bottom - low_top);
  }
  [[nodiscard]] static std::string size(std::size_t bytes) { return format_bytes(bytes).text(); }
  [[nodiscard]] bool is_worst(std::size_t line) const { return line == job_.worst; }

  template <typename... Parts>
  void put(const Parts&... parts) {
    ((out_ += parts), ...);
  }
  void words(const std::string& kind, std::size_t at_x, std::size_t at_y, std::string_view text) {
    put("<text class=\"", kind, "\" x=\"", tenths(at_x), "\" y=\"", tenths(at_y), "\">", markup_text(text),
        "</text>\n");
  }
  void line(const char* kind, std::size_t at_y) {
    put("<path class=\"", kind, "\" d=\"M", tenths(left), ' ', tenths(at_y), 'H', tenths(right), "\"/>\n");
  }

  [[nodiscard]] std::string text(const std::string& headline, const std::string& subtitle) {
    put("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"", tenths(full_width), "\" height=\"",
        tenths(full_height), "\" viewBox=\"0 0 ", tenths(full_width), ' ', tenths(full_height),
        "\" role=\"img\" aria-labelledby=\"title about\">\n<title id=\"title\">", markup_text(headline),
        "</title>\n<desc id=\"about\">", markup_text(subtitle), "</desc>\n");
    style();
    put("<rect class=\"ground\" width=\"", tenths(full_width), "\" height=\"", tenths(full_height),
        "\" rx=\"6\"/>\n");
    words("headline", 240, 350, headline);
    words("quiet", 240, 570, subtitle);
    axes();
    bars("reserved", bottom, [&](const rank_line& l) { return y(l.row.peak_reserved); }, false);
    bars("worst", bottom, [&](const rank_line& l) { return y(l.row.peak_reserved); }, true);
    bars("live", bottom, [&](const rank_line& l) { return y(std::min(l.row.peak_live, max_)); }, false);
    bars("live", bottom, [&](const rank_line& l) { return y(std::min(l.row.peak_live, max_)); }, true);
    if (has_capacity_) line("bound", y(*job_.capacity));
    bars("reserved", middle_, [&](const rank_line& l) { return low_y(l.row.peak_reserved); }, false);
    bars("worst", middle_, [&](const rank_line& l) { return low_y(l.row.peak_reserved); }, true);
    line("zero", middle_);
    marks();
    legend();
    put("</svg>\n");
    return std::move(out_);
  }

  void style() {
    put("<style>\n"
        "text{font-family:system-ui,-apple-system,\"Segoe UI\",Roboto,\"Helvetica Neue\",Arial,sans-serif;"
        "font-size:13px;font-variant-numeric:tabular-nums}\n"
        ".headline{font-size:17px;font-weight:600}.name{font-weight:600}.at-x{text-anchor:middle}"
        ".at-y{text-anchor:end}\n"
        ".grid,.bound,.zero{fill:none}.grid,.zero{shape-rendering:crispEdges}.bound{stroke-width:1.2;"
        "stroke-dasharray:5 4}\n"
        ".ground{fill:#fff}text{fill:#1c2128}.quiet,.at-x,.at-y{fill:#5c6670}.grid{stroke:#e4e7eb}.zero,."
        "bound{"
        "stroke:#444c56}.reserved{fill:#9fc3de}.live{fill:#0067a6}.worst{fill:#e07a2f}.out{fill:#b3261e}"
        ".unknown{fill:#c9ced4}\n"
        "@media "
        "(prefers-color-scheme:dark){.ground{fill:#14171c}text{fill:#e6e9ee}.quiet,.at-x,.at-y{fill:#9aa3ae}"
        ".grid{stroke:#2b3038}.zero,.bound{stroke:#c3cad3}.reserved{fill:#2f5f86}.live{fill:#58aaf0}"
        ".worst{fill:#d9772f}.out{fill:#ff8a80}.unknown{fill:#3a4048}}\n</style>\n");
  }

  /// Draws one bar for each measured rank: for the worst alone, or for the others.
  template <typename End>
  void bars(const char* kind, std::size_t from, End end, bool of_worst) {
    put("<path class=\"", kind, "\" d=\"");
    for (std::size_t i = 0; i < job_.lines.size(); ++i) {
      if (is_worst(i) != of_worst || !job_.lines[i].is_measured()) continue;
      // The worst stays visible among hundreds.
      const std::size_t begin = x(i), last = of_worst ? std::max(x_end(i), begin + 20) : x_end(i);
      put('M', tenths(begin), ' ', tenths(from), 'V', tenths(end(job_.lines[i])), 'H', tenths(last), 'V',
          tenths(from), 'Z');
    }
    put("\"/>\n");
  }

  void axes() {
    std::size_t step = 1;
    while (max_ / step >= 5) step *= 2;
    for (std::size_t i = 0; i <= max_ / step; ++i) {
      line("grid", y(i * step));
      words("at-y", left - 80, y(i * step) + 45, tick_text(i * step));
    }
    words("quiet", left, low_top - 200, "peak reserved, difference from the median");
    const std::size_t median = job_.reserved.median;
    if (job_.reserved.max > median) difference('+', job_.reserved.max - median, low_y(job_.reserved.max));
    if (job_.reserved.min < median) difference('-', median - job_.reserved.min, low_y(job_.reserved.min));
    words("at-y", left - 80, middle_ + 45, "0");
    step = 1;
    for (std::size_t i = 0; job_.lines.size() / step >= 17; ++i)
      step = step / (i % 3 == 2 ? 2 : 1) * (i % 3 == 2 ? 5 : 2);
    for (std::size_t i = 0; i < job_.lines.size(); i += step) {
      const rank_line& one = job_.lines[i];
      words("at-x", center(i), bottom + 220, one.rank ? std::to_string(*one.rank) : "#" + std::to_string(i));
    }
    words("at-y", left - 140, bottom + 220, "rank");
  }
  void difference(char sign, std::size_t bytes, std::size_t at) {
    // Near the middle, the text would cover that of 0.
    if ((at > middle_ ? at - middle_ : middle_ - at) < 150) return;
    line("grid", at);
    words("at-y", left - 80, at + 45, sign + size(bytes));
  }

  /// Marks ranks that ran out of memory, and those without a result.
  void marks() {
    for (std::size_t i = 0; i < job_.lines.size(); ++i) {
      const rank_line& one = job_.lines[i];
      if (!one.is_measured()) {
        put("<rect class=\"unknown\" x=\"", tenths(x(i)), "\" y=\"", tenths(top), "\" width=\"",
            tenths(std::max<std::size_t>(10, x_end(i) - x(i))), "\" height=\"", tenths(bottom - top),
            "\"/>\n");
      } else if (one.failed()) {
        const std::size_t tip = y(one.row.peak_reserved) - 20, half = 45;
        put("<path class=\"out\" d=\"M", tenths(center(i)), ' ', tenths(tip), 'L', tenths(center(i) - half),
            ' ', tenths(tip - 80), 'H', tenths(center(i) + half), "Z\"/>\n");
      }
    }
  }

  void legend() {
    const std::size_t at_x = right + 250;
    std::size_t at_y = top + 100;
    const auto item = [&](const char* kind, const std::string& name, const std::vector<std::string>& more) {
      put("<rect class=\"", kind, "\" x=\"", tenths(at_x), "\" y=\"", tenths(at_y - 95),
          "\" width=\"10\" height=\"10\"/>\n");
      words("name", at_x + 180, at_y, name);
      for (const std::string& text : more) words("quiet", at_x + 180, at_y += 170, text);
      at_y += 260;
    };
    const auto range = [&](const rank_spread<std::size_t>& s) {
      return std::vector<std::string>{"most " + size(s.max), "median " + size(s.median),
                                      "least " + size(s.min)};
    };
    item("worst", "worst: " + shortened(job_.lines[job_.worst].label), {});
    item("reserved", "peak reserved", range(job_.reserved));
    item("live", "peak live", range(job_.live));
    if (job_.failed != 0) item("out", std::to_string(job_.failed) + " out of memory", {});
    const std::size_t unknown = job_.lines.size() - job_.measured;
    if (unknown != 0) item("unknown", std::to_string(unknown) + " without a result", {});
    if (has_capacity_) {
      put("<path class=\"bound\" d=\"M", tenths(at_x - 30), ' ', tenths(at_y - 45), "h16\"/>\n");
      words("name", at_x + 180, at_y, "capacity");
      words("quiet", at_x + 180, at_y + 170, size(*job_.capacity));
    }
  }
  /// A label that fits beside the picture.
  [[nodiscard]] static std::string shortened(const std::string& label) {
    constexpr std::size_t max_letters = 22;
    if (label.size() <= max_letters) return label;
    return utf8_text(label.substr(0, max_letters - 3)) + "...";
  }

  const rank_summary& job_;
  std::size_t max_ = 1;     // bytes
  std::size_t middle_ = 0;  // the median in the lower part
  bool has_capacity_ = false;
  std::string out_;
};

}  // namespace replay
