// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <tessera/core/bytes.hpp>
#include <tessera/plan/check_plan.hpp>
#include <tessera/plan/memory_plan.hpp>
#include <tessera/trace/csv.hpp>

#include "make_plan.hpp"

namespace tessera::inline v0_1::detail {

inline constexpr std::string_view plan_csv_header = "record,1,2,3,4,5,6,7";

/// Adds numbers, separated by commas, between two texts.
inline void add_numbers(std::string& to, const char* before, std::initializer_list<std::uint64_t> numbers,
                        const char* after) {
  to += before;
  bool is_first = true;
  for (const std::uint64_t n : numbers) {
    if (!is_first) to += ',';
    is_first = false;
    to += std::to_string(n);
  }
  to += after;
}

/// Reads a plan from CSV.
class plan_reader {
 public:
  plan_reader(std::string_view text, std::string name) : line_(text, std::move(name)) {}

  [[nodiscard]] std::variant<plan::made_plan, trace::input_error> run() {
    if (!line_.next_line() || line_.text() != plan_csv_header)
      return line_.error("the header must be '" + std::string(plan_csv_header) + "', not " +
                         trace::detail::quoted_field(line_.text()));
    while (line_.next_line()) {
      if (std::optional<std::string> wrong = read_line()) return line_.error(std::move(*wrong));
    }
    if (!has_numbers_) return line_.error("a plan has a line 'plan'");
    if (!has_end_) return line_.error("a plan's last line is 'end': the file is cut");
    if (const char* const fault = plan::find_fault(made_.view()))
      return trace::input_error{line_.name(), fault};
    return std::move(made_);
  }

 private:
  /// Reads a line. Returns the error text, if it is invalid.
  [[nodiscard]] std::optional<std::string> read_line() {
    if (has_end_) return "a plan's last line is 'end'";
    const std::string_view what = line_[0];
    std::uint64_t n[7]{};
    const auto has = [&](std::string_view name, std::size_t count) {
      return what == name && line_.count() == count + 1;
    };
    for (std::size_t i = 1; i < line_.count() && i < 8; ++i) {
      const bool is_kept = what == "entry" && i == 2 && line_[i] == "kept";
      if (is_kept) n[i - 1] = plan::memory_plan::keeps;
      if (!is_kept && !line_.read_integer(i, n[i - 1]))
        return trace::detail::quoted_field(line_[i]) + " is not a whole number below 2^64";
      if (!is_wide(what, i) && n[i - 1] > 0xFFFFFFFF) return std::to_string(n[i - 1]) + " is not below 2^32";
    }
    const auto number = [&n](std::size_t i) { return static_cast<std::uint32_t>(n[i]); };
    if (has("plan", 7)) {
      if (has_numbers_) return "a plan has one line 'plan'";
      has_numbers_ = true;
      made_.numbers = {n[0], n[1], n[2], n[3], n[4], n[5], number(6), {}, {}, {}, {}, {}, {}};
    } else if (has("bank", 1)) {
      if (!made_.tracks.empty()) return "the banks come before the tracks";
      made_.bank_ends.push_back(n[0]);
    } else if (has("track", 1)) {
      made_.tracks.push_back({n[0]});
    } else if (has("kind", 3)) {
      made_.kinds.push_back({n[0], number(1), number(2)});
    } else if (has("step", 2)) {
      made_.steps.push_back({n[0], number(1)});
    } else if (has("entry", 3)) {
      made_.entries.push_back({number(0), number(1), number(2)});
    } else if (has("death", 1)) {
      if (made_.entries.empty()) return "a death follows its entry";
      made_.deaths.push_back(number(0));
    } else if (has("end", 0)) {
      has_end_ = true;
      return {};
    } else {
      return trace::detail::quoted_field(line_.text()) + " is no line of a plan";
    }
    return place_line();
  }
  /// Whether a field may have more than 32 bits.
  [[nodiscard]] static bool is_wide(std::string_view what, std::size_t field) noexcept {
    return (what == "plan" && field < 7) ||
           ((what == "bank" || what == "track" || what == "kind" || what == "step") && field == 1);
  }
  /// Moves the ends of the track and of the entry to the line.
  [[nodiscard]] std::optional<std::string> place_line() {
    if (made_.tracks.empty())
      return line_[0] == "plan" || line_[0] == "bank"
                 ? std::nullopt
                 : std::optional<std::string>("a track comes before its lines");
    plan::memory_plan::track& t = made_.tracks.back();
    t.kinds_end = static_cast<std::uint32_t>(made_.kinds.size());
    t.entries_end = static_cast<std::uint32_t>(made_.entries.size());
    t.steps_end = static_cast<std::uint32_t>(made_.steps.size());
    if (!made_.entries.empty()) made_.entries.back().deaths = static_cast<std::uint32_t>(made_.deaths.size());
    return {};
  }

  trace::detail::field_reader line_;
  plan::made_plan made_;
  bool has_numbers_ = false;
  bool has_end_ = false;
};

}  // namespace tessera::inline v0_1::detail

namespace tessera::inline v0_1::plan {

/// Writes a plan as CSV, for read_csv.
///
/// The first field of a line says what it is; the others are numbers:
///
/// | line  | numbers                                                                                     |
/// |-------|---------------------------------------------------------------------------------------------|
/// | plan  | fingerprint, first and end event, bytes, peak live, lower bound, alignment                  |
/// | bank  | its end; there is one for each bank but the last, in the order of the banks                |
/// | track | stream; its lines follow                                                                    |
/// | kind  | bytes of a request, the first kept place and the number of kept places                      |
/// | step  | key, its first entry                                                                        |
/// | entry | kind, place or `kept`, the entry that may come instead or 0                                 |
/// | death | an entry: it is freed before the entry above, or, above a step's first, may be live there   |
/// | end   | none; it is the last line, so that a file that was cut is refused                           |
[[nodiscard]] inline std::string to_csv(const memory_plan& plan) {
  using tessera::detail::add_numbers;
  std::string text(tessera::detail::plan_csv_header);
  add_numbers(text, "\nplan,",
              {plan.fingerprint, plan.first_event, plan.end_event, plan.bytes, plan.peak_live,
               plan.lower_bound, plan.alignment},
              "\n");
  for (const std::uint64_t end : plan.bank_ends) add_numbers(text, "bank,", {end}, "\n");
  std::uint32_t k = 0, s = 0, e = 0, d = 0;
  for (const memory_plan::track& t : plan.tracks) {
    add_numbers(text, "track,", {t.stream}, "\n");
    for (; k < t.kinds_end; ++k)
      add_numbers(text, "kind,", {plan.kinds[k].bytes, plan.kinds[k].kept_place, plan.kinds[k].kept}, "\n");
    for (; s < t.steps_end; ++s) add_numbers(text, "step,", {plan.steps[s].key, plan.steps[s].entry}, "\n");
    for (; e < t.entries_end; ++e) {
      const memory_plan::entry& entry = plan.entries[e];
      add_numbers(text, "entry,", {entry.kind}, ",");
      if (entry.place == memory_plan::keeps) {
        add_numbers(text, "kept,", {entry.other}, "\n");
      } else {
        add_numbers(text, "", {entry.place, entry.other}, "\n");
      }
      for (; d < entry.deaths; ++d) add_numbers(text, "death,", {plan.deaths[d]}, "\n");
    }
  }
  text += "end\n";
  return text;
}

/// Reads a plan that to_csv wrote.
///   Returns:  an error with its line for invalid lines, or the rule that the plan breaks
///   Cost:     n log n
[[nodiscard]] inline std::variant<made_plan, trace::input_error> read_csv(std::string_view text,
                                                                          std::string name) {
  return tessera::detail::plan_reader(text, std::move(name)).run();
}

/// Writes a plan as a C++ header that defines the constant `plans::NAME`. Its arrays take 16 bytes an entry, and
/// 4 bytes for each death.
///   Requires:  `name` is an identifier; `comment` has one line
[[nodiscard]] inline std::string to_header(const memory_plan& plan, const std::string& name,
                                           const std::string& comment) {
  using tessera::detail::add_numbers;
  std::string text = "// " + comment +
                     "\n#pragma once\n\n#include <cstdint>\n\n#include <tessera/plan/memory_plan.hpp>\n\n"
                     "namespace plans {\n\nnamespace " +
                     name + "_arrays {\n";
  const auto array = [&text](const char* type, const char* of, const auto& items, auto add) {
    if (items.empty()) return;
    text.append("inline constexpr ").append(type).append(" ").append(of).append("[] = {\n");
    std::size_t begin = text.size();
    for (const auto& item : items) {
      add(item);
      if (text.size() - begin < 100) continue;
      text += '\n';
      begin = text.size();
    }
    text += "};\n";
  };
  array("tessera::plan::memory_plan::kind", "kinds", plan.kinds,
        [&](const memory_plan::kind& k) { add_numbers(text, "{", {k.bytes, k.kept_place, k.kept}, "},"); });
  array("tessera::plan::memory_plan::track", "tracks", plan.tracks, [&](const memory_plan::track& t) {
    add_numbers(text, "{", {t.stream}, "u,");
    add_numbers(text, "", {t.kinds_end, t.entries_end, t.steps_end}, "},");
  });
  array("tessera::plan::memory_plan::step", "steps", plan.steps, [&](const memory_plan::step& s) {
    add_numbers(text, "{", {s.key}, "u,");
    add_numbers(text, "", {s.entry}, "},");
  });
  array("tessera::plan::memory_plan::entry", "entries", plan.entries, [&](const memory_plan::entry& e) {
    add_numbers(text, "{", {e.kind, e.place, e.other, e.deaths}, "},");
  });
  array("std::uint32_t", "deaths", plan.deaths, [&](std::uint32_t d) { add_numbers(text, "", {d}, ","); });
  array("std::uint64_t", "bank_ends", plan.bank_ends,
        [&](std::uint64_t end) { add_numbers(text, "", {end}, "u,"); });
  text +=
      "}  // namespace " + name + "_arrays\n\ninline constexpr tessera::plan::memory_plan " + name + "{\n";
  const auto number = [&text](const char* of, std::uint64_t n) {
    text.append("    .")
        .append(of)
        .append(" = ")
        .append(std::to_string(n))
        .append(n > 0xFFFFFFFF ? "u,\n" : ",\n");
  };
  number("fingerprint", plan.fingerprint);
  number("first_event", plan.first_event);
  number("end_event", plan.end_event);
  number("bytes", plan.bytes);
  number("peak_live", plan.peak_live);
  number("lower_bound", plan.lower_bound);
  number("alignment", plan.alignment);
  const auto span = [&](const char* of, bool is_empty) {
    if (!is_empty)
      text.append("    .").append(of).append(" = ").append(name).append("_arrays::").append(of).append(",\n");
  };
  span("kinds", plan.kinds.empty());
  span("tracks", plan.tracks.empty());
  span("steps", plan.steps.empty());
  span("entries", plan.entries.empty());
  span("deaths", plan.deaths.empty());
  span("bank_ends", plan.bank_ends.empty());
  return text + "};\n\n}  // namespace plans\n";
}

}  // namespace tessera::inline v0_1::plan
