// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tessera/core/bytes.hpp>

#include "neighbours.hpp"

namespace replay {

class recipe_list;

/// The parsed command line.
struct arguments {
  const recipe_list* known = nullptr;  // the recipes that it may name
  std::vector<std::string> files;
  std::string recipe = "pytorch";    // the last one given
  std::vector<std::string> recipes;  // all that were given
  std::string system = "pytorch";
  std::string conf;                   // the last one given
  std::vector<std::string> confs;     // all that were given
  bool has_conf = false;              // false if `conf` was not given
  std::string out;                    // the file to write; the last one given
  std::vector<std::string> outs;      // all that were given
  std::string plan;                   // the file with a plan; empty for none
  std::string at;                     // when to take the snapshot: peak or end
  std::optional<std::size_t> device;  // of a snapshot; empty for all
  std::size_t capacity = tessera::operator""_GiB(80);
  bool has_capacity = false;              // false if `capacity` is the default
  std::optional<double> memory_fraction;  // the argument of set_per_process_memory_fraction
  std::size_t max_ns = 0;                 // host nanoseconds per operation; 0 for no limit
  std::size_t from = 0;                   // the first event to plan
  std::size_t to = tessera::unlimited;    // one behind the last
  double effort = 10;                     // of the search for places
  std::uint64_t seed = 1;                 // of that search
  std::uint32_t alignment = 512;          // of planned places
  std::vector<std::size_t> banks;         // capacities; empty for one bank
  std::size_t addresses = 0;              // further replays of compare, with random addresses
  std::size_t jobs = 0;                   // files at once; 0 for one per processor
  std::size_t host_memory = 0;            // of all workers together; 0 for what is available
  std::size_t trials = 1'000;             // neighbours to replay
  variation varied{};                     // how neighbours differ
  std::string results;                    // the folder for results of files, or - for standard output
  bool json = false;
  bool as_recorded = false;  // convert a snapshot without a replay
};

/// Exit codes, of each verb. With several files or devices, the largest counts.
///   0  done; the answer is yes, if the verb has a question
///   1  done; the answer is no: the replay decides otherwise, the program does not complete, the plan does not fit
///   2  invalid arguments or input, or an output that cannot be written. What could be done was done
enum : int { done = 0, differs = 1, invalid_input = 2 };

namespace commands {
int compare(const arguments& args);
int decisions(const arguments& args);
int verify(const arguments& args);
int fit(const arguments& args);
int explain(const arguments& args);
int snapshot(const arguments& args);
int draw(const arguments& args);
int explain_oom(const arguments& args);
int tune(const arguments& args);
int plan(const arguments& args);
int ranks(const arguments& args);
int headroom(const arguments& args);
}  // namespace commands

/// The edit distance of two words: insertions, removals, replacements and swaps of neighbours.
[[nodiscard]] inline std::size_t edit_distance(std::string_view from, std::string_view to) {
  std::vector<std::size_t> two_before, before(to.size() + 1), row(to.size() + 1);
  std::iota(before.begin(), before.end(), std::size_t{0});
  for (std::size_t i = 1; i <= from.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= to.size(); ++j) {
      row[j] = std::min({before[j] + 1, row[j - 1] + 1, before[j - 1] + (from[i - 1] != to[j - 1])});
      if (i > 1 && j > 1 && from[i - 1] == to[j - 2] && from[i - 2] == to[j - 1])
        row[j] = std::min(row[j], two_before[j - 2] + 1);
    }
    two_before = std::exchange(before, row);
  }
  return before.back();
}

/// Returns "; did you mean NAME?" for the most similar name, or an empty text if none is similar.
template <typename Names>
[[nodiscard]] std::string did_you_mean(std::string_view word, const Names& names) {
  constexpr std::size_t longest = 64;  // longer words are never a name
  std::size_t min_distance = std::max<std::size_t>(1, std::min(word.size(), longest) / 3) + 1;
  std::string_view nearest;
  for (const std::string_view name : names) {
    if (word.size() > longest) break;
    const std::size_t distance = edit_distance(word, name);
    if (distance < min_distance) min_distance = distance, nearest = name;
  }
  return nearest.empty() ? "" : "; did you mean " + std::string(nearest) + "?";
}

/// Joins names with commas.
template <typename Names>
[[nodiscard]] std::string listed(const Names& names) {
  std::string text;
  for (const std::string_view name : names) (text += text.empty() ? "" : ", ") += name;
  return text;
}

/// Reads a size such as "8GiB", "1.5 GiB" or "4096", rounded down to a byte and to six decimals.
///   Returns:  the error text, or an empty one
[[nodiscard]] inline std::string read_size(std::string_view text, std::size_t& bytes) {
  constexpr std::pair<std::string_view, unsigned> units[] = {{"", 0},     {"B", 0},    {"KiB", 10},
                                                             {"MiB", 20}, {"GiB", 30}, {"TiB", 40}};
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  const auto too_large = [&] { return std::string(text) + ": is more than 2^64 - 1 bytes"; };
  const std::string wrong =
      std::string(text) + ": must be a positive number of bytes, or of KiB, MiB, GiB or TiB, as in 8GiB";

  std::size_t at = 0;
  std::uint64_t whole = 0;
  for (; at < text.size() && is_digit(text[at]); ++at) {
    const auto digit = static_cast<std::uint64_t>(text[at] - '0');
    if (whole > (std::numeric_limits<std::uint64_t>::max() - digit) / 10) return too_large();
    whole = 10 * whole + digit;
  }
  if (at == 0) return wrong;
  std::uint64_t part = 0, of = 1;
  const bool has_point = at < text.size() && text[at] == '.';
  if (has_point) {
    const std::size_t point = at++;
    for (; at < text.size() && is_digit(text[at]); ++at) {
      if (at - point > 6) continue;
      part = 10 * part + static_cast<std::uint64_t>(text[at] - '0');
      of *= 10;
    }
    if (at == point + 1) return wrong;
  }
  if (at < text.size() && text[at] == ' ') ++at;
  const std::string_view named = text.substr(at);
  const auto is_same = [](char a, char b) { return (a | 0x20) == (b | 0x20); };
  for (const auto& [unit, shift] : units) {
    if (!std::equal(named.begin(), named.end(), unit.begin(), unit.end(), is_same)) continue;
    if (has_point && shift == 0) return wrong;
    if (whole > std::numeric_limits<std::uint64_t>::max() >> shift) return too_large();
    const std::uint64_t all = (whole << shift) + (part << shift) / of;
    if (all == 0) return wrong;
    bytes = static_cast<std::size_t>(all);
    return {};
  }
  return wrong;
}

}  // namespace replay
