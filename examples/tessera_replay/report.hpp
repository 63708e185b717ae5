// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <tessera/trace/recording.hpp>

#include "compare.hpp"
#include "memory_map.hpp"

namespace replay {

/// A segment with non-releasable memory, and the blocks that keep it.
struct partly_free_segment {
  std::size_t bytes = 0, non_releasable = 0, live = 0, live_blocks = 0;
  bool in_range = false;
  std::vector<std::uint64_t> ids;  ///< of the first live blocks in it
};

/// The memory of one recipe over time.
struct recipe_run {
  std::string recipe;
  replay::timeline over;
  std::size_t failures = 0;
  std::size_t mapped_event =
      0;  ///< the event after which the map was taken: the first failure, else at peak reserved
  replay::memory_map map;
  std::size_t segments = 0;  ///< in the map, without those that sleep
  std::vector<partly_free_segment>
      partly_free;           ///< the segments with the most non-releasable bytes, in descending order
  bool as_recorded = false;  ///< what the GPU did, not a replay: it begins with its cache
};

/// The contents of a report.
struct picture {
  std::string trace;  ///< the title
  const tessera::trace::recording* source;
  std::size_t peak_live = 0;  ///< bytes as requested
  std::size_t capacity = 0;   ///< bytes
  std::size_t sleeps = 0;     ///< sleeps and wakes
  std::vector<recipe_run> recipes;
  std::vector<recipe_result> results;
  std::size_t events_at_start = 0;  ///< the first events allocate what was live when the history begins
};

/// The headline of a picture.
[[nodiscard]] std::string headline(const picture& shown);
/// The report as a self-contained HTML page.
[[nodiscard]] std::string html_report(const picture& shown);

/// Whether any block was ever pending.
[[nodiscard]] bool ever_pending(const recipe_run& shown);
/// Whether any memory ever slept.
[[nodiscard]] bool ever_asleep(const recipe_run& shown);
/// The numbers of the private pools in all maps, in ascending order.
[[nodiscard]] std::vector<std::uint64_t> private_pools(const picture& shown);
/// The data of a report's script, as JSON that is safe in a script element.
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
/// The paragraph above a map.
[[nodiscard]] std::string map_caption(const recipe_run& d, const picture& shown);

}  // namespace replay::report
