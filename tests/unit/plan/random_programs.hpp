// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "tessera_replay/planner/place.hpp"

namespace plan_tests {

using tessera::plan::lifetime;
using tessera::plan::time_span;

/// Blocks that own their spans.
struct program {
  std::vector<std::size_t> bytes;
  std::vector<std::vector<time_span>> spans;

  void add(std::size_t size, std::vector<time_span> live) {
    bytes.push_back(size);
    spans.push_back(std::move(live));
  }
  [[nodiscard]] std::vector<lifetime> blocks() const {
    std::vector<lifetime> result;
    for (std::size_t i = 0; i < bytes.size(); ++i) result.push_back({bytes[i], spans[i]});
    return result;
  }
};

/// Random programs of `count` blocks: sizes from 1 to max_bytes, up to max_spans spans within `end`.
inline program random_program(tessera::plan::detail::random_numbers& random, std::size_t count,
                              std::uint32_t end, std::size_t max_bytes, std::size_t max_spans) {
  program result;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t spans = 1 + random.below(max_spans);
    std::vector<std::uint32_t> times;
    while (times.size() < 2 * spans) {
      const auto time = static_cast<std::uint32_t>(random.below(end + 1));
      if (std::find(times.begin(), times.end(), time) == times.end()) times.push_back(time);
    }
    std::sort(times.begin(), times.end());
    std::vector<time_span> live;
    for (std::size_t k = 0; k < spans; ++k) live.push_back({times[2 * k], times[2 * k + 1]});
    result.add(1 + random.below(max_bytes), std::move(live));
  }
  return result;
}

}  // namespace plan_tests
