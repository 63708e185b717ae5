// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <tessera/trace/recording.hpp>

#include "compare.hpp"
#include "memory_map.hpp"
#include "run_log.hpp"

namespace replay {

enum class run_kind : unsigned char { recorded, replayed, planned };

/// The memory of a run over time.
struct drawn_run {
  std::string name;
  run_kind is = run_kind::replayed;
  run_log log;
  timeline over;
  std::size_t failures = 0;
  std::size_t mapped_event = 0;  ///< the first failure, else the event at peak reserved
  bool has_cause = true;         ///< whether that event fails or reserves memory
  memory_map::totals sums{};     ///< after that event
  std::size_t segments = 0;      ///< then, without those that sleep
  std::size_t largest_free = 0;  ///< bytes of the largest free block: before that event, or after a failure
};

/// The contents of a report.
struct picture {
  std::string trace;  ///< the title
  const tessera::trace::recording* source;
  std::size_t peak_live = 0;         ///< bytes as requested
  std::size_t capacity = 0;          ///< bytes
  std::size_t sleeps = 0;            ///< sleeps and wakes
  std::size_t events_at_start = 0;   ///< the first events allocate what was live when the history begins
  std::uint64_t events_dropped = 0;  ///< before the history begins, because it was full
  std::string note{};                ///< about a plan; empty if there is nothing to say
  std::vector<drawn_run> runs{};
  std::vector<recipe_result> results{};
};

/// The headline of a picture.
[[nodiscard]] std::string headline(const picture& shown);
/// The report as a self-contained HTML page.
[[nodiscard]] std::string html_report(const picture& shown);

/// The data of a report's script, as JSON that is safe in a script element.
///   Cost:  about 15 bytes for each allocation, and 5 for each more run
[[nodiscard]] std::string report_data(const picture& shown);
}  // namespace replay

namespace replay::report {

/// Formats bytes with a non-breaking space.
[[nodiscard]] std::string bytes_text(std::size_t bytes);
/// Formats bytes as a multiple of peak live.
[[nodiscard]] std::string times(std::size_t bytes, const picture& shown);
[[nodiscard]] std::string plural(std::size_t n, const std::string& one, const std::string& several);
[[nodiscard]] std::string number(std::size_t n);
/// The paragraph below the headline.
[[nodiscard]] std::string lead(const picture& shown);
/// The memory of a run at its first failure or peak, in words, for readers without the script.
[[nodiscard]] std::string map_caption(const drawn_run& d, const picture& shown);
}  // namespace replay::report
