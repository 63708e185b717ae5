// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <tessera/replay/recording.hpp>

#include "compare.hpp"
#include "memory_map.hpp"

namespace replay {

/// A segment of which much is free but pinned, and who holds it.
struct pin {
  std::size_t bytes = 0, pinned = 0, live = 0, live_blocks = 0;
  bool in_range = false;
  std::vector<std::uint64_t> holders;  ///< ids of the first live blocks in it
};

/// What draw found out about one recipe.
struct drawn {
  std::string recipe;
  replay::timeline over;
  std::size_t failures = 0;
  std::size_t eviction_trigger =
      0;  ///< the event behind which the map was taken: the first that failed, or else with most reserved
  replay::memory_map map;
  std::size_t segments = 0;  ///< in the map
  std::vector<pin> pins;     ///< the segments with most pinned, most first
};

/// All that a report shows.
struct picture {
  std::string trace;  ///< its title
  const tessera::trace::recording* source;
  std::size_t peak_live = 0;  ///< bytes as requested
  std::size_t capacity = 0;   ///< bytes
  std::vector<drawn> recipes;
  std::vector<row> rows;
};

/// The sentence that says most about a picture.
[[nodiscard]] std::string headline(const picture& shown);
/// A whole HTML page that needs nothing else.
[[nodiscard]] std::string html_report(const picture& shown);

/// Whether anything was ever pending.
[[nodiscard]] bool ever_pending(const drawn& shown);
/// What a report's script draws, as JSON that may stand in a script element.
[[nodiscard]] std::string report_data(const picture& shown);
}  // namespace replay

namespace replay::report {

/// Bytes with a space that does not end a line.
[[nodiscard]] std::string bytes_text(std::size_t bytes);
/// How many times what lives at most.
[[nodiscard]] std::string times(std::size_t bytes, const picture& shown);
[[nodiscard]] std::string plural(std::size_t n, const std::string& one, const std::string& several);
[[nodiscard]] std::string number(std::size_t n);
/// What stands below the headline.
[[nodiscard]] std::string lead(const picture& shown);
/// What stands above a map.
[[nodiscard]] std::string moment_text(const drawn& d, const picture& shown);

}  // namespace replay::report
