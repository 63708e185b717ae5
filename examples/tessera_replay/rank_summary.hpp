// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tessera/core/bytes.hpp>

#include "input.hpp"
#include "rank_number.hpp"
#include "rank_result.hpp"
#include "text.hpp"

/// What the ranks of a job have in common, and which of them stand out.
namespace replay {

/// A device of a rank in the table.
struct rank_line {
  std::string label;                ///< such as "rank 3, device 1"
  std::string file;                 ///< its path
  std::optional<std::size_t> rank;  ///< from the path
  rank_row row;

  [[nodiscard]] bool is_measured() const { return row.error.empty(); }
  [[nodiscard]] bool failed() const { return row.failure.has_value(); }
  /// The share of peak reserved that is above peak live, in percent.
  [[nodiscard]] double fragmentation() const {
    if (row.peak_reserved <= row.peak_live) return 0;
    return 100 * static_cast<double>(row.peak_reserved - row.peak_live) /
           static_cast<double>(row.peak_reserved);
  }
};

/// A quantity over all ranks. The places are those of ranks in the table, the first of equal ones.
template <typename T>
struct rank_spread {
  T min{}, median{}, max{};
  std::size_t at_min = 0, at_max = 0;
};

/// A setting over all ranks; sizes in bytes.
struct setting_summary {
  rank_setting setting;
  std::size_t measured = 0;             ///< ranks
  std::size_t served = 0;               ///< ranks that complete with the capacity of the job
  std::optional<std::size_t> capacity;  ///< that all measured ranks need; nothing if one never completes
  std::size_t peak_reserved = 0;        ///< of the worst rank; with so much, every rank completes for certain
  std::size_t worst = 0;                ///< the rank that needs most, by its place
};

struct rank_summary {
  std::vector<rank_line> lines;         ///< by rank
  std::size_t measured = 0;             ///< lines without an error
  std::size_t failed = 0;               ///< ranks that ran out of memory
  std::size_t recorded = 0;             ///< ranks whose peaks are those of the device
  std::size_t worst = 0;                ///< its place: most reserved, among those that failed if any did
  std::optional<std::size_t> capacity;  ///< of the devices: as asked for, or else the smallest recorded one
  rank_spread<std::size_t> live, reserved;
  rank_spread<double> fragmentation;
  std::vector<setting_summary> settings;
  std::optional<std::size_t> best;  ///< the setting that serves all ranks with the least capacity

  [[nodiscard]] bool serves_all(const setting_summary& s) const {
    return s.measured == measured && (capacity ? s.served == measured : s.capacity.has_value());
  }
};

namespace rank_detail {

template <typename T, typename Value>
[[nodiscard]] rank_spread<T> spread_of(const std::vector<rank_line>& lines, Value value) {
  std::vector<std::pair<T, std::size_t>> all;
  for (std::size_t i = 0; i < lines.size(); ++i)
    if (lines[i].is_measured()) all.emplace_back(value(lines[i]), i);
  if (all.empty()) return {};
  std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  const auto max =
      std::find_if(all.begin(), all.end(), [&](const auto& one) { return one.first == all.back().first; });
  return {all.front().first, all[(all.size() - 1) / 2].first, max->first, all.front().second, max->second};
}

/// Whether a rank completes with a setting and this capacity: as tested with it, or else by the bisection.
[[nodiscard]] inline bool completes(const rank_row& row, const setting_result& with, std::size_t capacity) {
  if (row.capacity == capacity && with.completes) return *with.completes;
  return with.capacity && *with.capacity <= capacity;
}

/// Orders lines by rank, then by name and device. Ranks without a number come last.
[[nodiscard]] inline bool is_before(const rank_line& a, const rank_line& b) {
  if (a.rank.has_value() != b.rank.has_value()) return a.rank.has_value();
  if (a.rank != b.rank) return a.rank < b.rank;
  if (const auto order = compare_names(a.file, b.file); order != 0) return order < 0;
  return a.row.device < b.row.device;
}

/// Names the lines. Files with the same rank or name also get their folder and name.
inline void label(std::vector<rank_line>& lines) {
  std::map<std::string, std::vector<rank_line*>> by_label;
  for (rank_line& one : lines)
    by_label[one.rank ? "rank " + std::to_string(*one.rank) : printable_text(title_of(one.file))].push_back(
        &one);
  for (const auto& [label, same] : by_label) {
    const std::string& first = same[0]->file;
    const bool are_one_file =
        std::all_of(same.begin(), same.end(), [&](const rank_line* l) { return l->file == first; });
    for (rank_line* const one : same) {
      const std::string_view path = one->file;
      const std::size_t slash = path.find_last_of('/');
      const std::size_t before =
          slash == path.npos || slash == 0 ? path.npos : path.find_last_of('/', slash - 1);
      one->label = label;
      if (!are_one_file)
        one->label += " (" + printable_text(path.substr(before == path.npos ? 0 : before + 1)) + ")";
      if (are_one_file && same.size() > 1 && one->row.device)
        one->label += ", device " + std::to_string(*one->row.device);
      else if (!are_one_file && one->row.device.value_or(0) != 0)
        one->label += ", device " + std::to_string(*one->row.device);
    }
  }
}

}  // namespace rank_detail

/// Summarizes the results of all files. A file that is there twice counts once, as it comes first.
[[nodiscard]] inline rank_summary summarize(const std::vector<rank_result>& results,
                                            std::optional<std::size_t> capacity) {
  rank_summary made;
  std::map<std::string_view, bool> seen;
  for (const rank_result& one : results) {
    if (!seen.emplace(one.file, true).second) continue;
    const auto add = [&](rank_row row) {
      made.lines.push_back({{}, one.file, rank_number(one.file), std::move(row)});
    };
    if (!one.error.empty()) {
      rank_row wrong;
      wrong.error = one.error;
      add(std::move(wrong));
    }
    for (const rank_row& row : one.rows) add(row);
  }
  std::stable_sort(made.lines.begin(), made.lines.end(), &rank_detail::is_before);
  rank_detail::label(made.lines);

  made.capacity = capacity;
  for (std::size_t i = 0; i < made.lines.size(); ++i) {
    const rank_line& one = made.lines[i];
    if (!one.is_measured()) continue;
    const auto badness = [](const rank_line& l) { return std::pair(l.failed(), l.row.peak_reserved); };
    if (made.measured == 0 || badness(made.lines[made.worst]) < badness(one)) made.worst = i;
    ++made.measured;
    made.failed += one.failed();
    made.recorded += one.row.recorded;
    if (!capacity && one.row.capacity && one.row.capacity < made.capacity.value_or(~std::size_t{0}))
      made.capacity = one.row.capacity;
  }
  using rank_detail::spread_of;
  made.live = spread_of<std::size_t>(made.lines, [](const rank_line& l) { return l.row.peak_live; });
  made.reserved = spread_of<std::size_t>(made.lines, [](const rank_line& l) { return l.row.peak_reserved; });
  made.fragmentation = spread_of<double>(made.lines, [](const rank_line& l) { return l.fragmentation(); });

  std::map<std::pair<std::string_view, std::string_view>, std::size_t> places;
  std::vector<bool> never;  // by setting: whether no capacity is enough for some rank
  for (std::size_t i = 0; i < made.lines.size(); ++i) {
    for (const setting_result& one : made.lines[i].row.settings) {
      const auto [at, is_new] =
          places.emplace(std::pair(std::string_view(one.setting.recipe), std::string_view(one.setting.conf)),
                         made.settings.size());
      if (is_new) {
        made.settings.push_back({one.setting, 0, 0, 0, 0, i});
        never.push_back(false);
      }
      setting_summary& to = made.settings[at->second];
      ++to.measured;
      to.served += made.capacity && rank_detail::completes(made.lines[i].row, one, *made.capacity);
      to.peak_reserved = std::max(to.peak_reserved, one.peak_reserved);
      if (never[at->second]) continue;
      if (!one.capacity) never[at->second] = true;
      if (!one.capacity || *one.capacity > *to.capacity) to.worst = i;
      to.capacity = one.capacity ? std::max(to.capacity, one.capacity) : std::nullopt;
    }
  }
  for (std::size_t i = 0; i < made.settings.size(); ++i) {
    const setting_summary& s = made.settings[i];
    if (!made.serves_all(s) || !s.capacity) continue;
    if (!made.best || *s.capacity < *made.settings[*made.best].capacity) made.best = i;
  }
  return made;
}

/// The settings with which a rank completes, the one with the least capacity first.
[[nodiscard]] inline std::vector<const setting_result*> helpful_settings(const rank_line& line,
                                                                         std::size_t capacity) {
  std::vector<const setting_result*> found;
  for (const setting_result& one : line.row.settings)
    if (rank_detail::completes(line.row, one, capacity)) found.push_back(&one);
  std::stable_sort(found.begin(), found.end(), [](const setting_result* a, const setting_result* b) {
    return a->capacity.value_or(~std::size_t{0}) < b->capacity.value_or(~std::size_t{0});
  });
  return found;
}

/// Says in one line why a rank ran out of memory, and which setting would have helped.
///   Requires:  line.failed()
[[nodiscard]] inline std::string why_it_failed(const rank_line& line) {
  const rank_failure& f = *line.row.failure;
  const auto size = [](std::size_t bytes) { return std::string(tessera::format_bytes(bytes).text()); };
  std::string text = size(f.requested) + " requested with " + size(f.live) + " live and " + size(f.reserved) +
                     " reserved of " + size(f.capacity) + ": ";
  const std::size_t needed = std::max(line.row.peak_live, f.live + f.requested);
  if (needed > f.capacity)
    return text + "live tensors alone need " + size(needed) + ", more than the " + size(f.capacity) +
           " of the device";
  const std::size_t unreserved = f.capacity > f.reserved ? f.capacity - f.reserved : 0;
  const std::size_t free = f.reserved > f.live ? f.reserved - f.live : 0;
  text += unreserved >= f.requested
              ? "a segment for it needs more than the " + size(unreserved) + " not reserved"
              : "fragmentation, because " + size(free) + " in free blocks and " + size(unreserved) +
                    " not reserved are enough in sum, but not in one piece";
  const auto helpful = helpful_settings(line, f.capacity);
  if (helpful.empty()) return text + "; none of the settings below helps";
  return text + "; completes with " + printable_text(helpful[0]->setting.text());
}

}  // namespace replay
