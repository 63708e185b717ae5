// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <tessera/replay/recording.hpp>
#include "memory_map.hpp"
#include "timeline.hpp"

#include "comparison.hpp"

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
  tessera::trace::timeline over;
  std::size_t failures = 0;
  std::size_t eviction_trigger =
      0;  ///< the event behind which the map was taken: the first that failed, or else with most reserved
  tessera::trace::memory_map map;
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

}  // namespace replay
