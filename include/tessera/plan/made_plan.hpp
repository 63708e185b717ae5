// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <tessera/plan/memory_plan.hpp>

namespace tessera::plan {

/// A plan and its arrays.
struct made_plan {
  memory_plan numbers;  ///< without the arrays
  std::vector<memory_plan::kind> kinds;
  std::vector<memory_plan::track> tracks;
  std::vector<memory_plan::step> steps;
  std::vector<memory_plan::entry> entries;
  std::vector<std::uint32_t> deaths;
  std::size_t recorded_requests = 0;  ///< requests of the recording that the entries stand for
  /// Steps that the program marked, or that were found, in the stream with most requests. Requests before the first
  /// step and behind the last are none.
  std::size_t recorded_steps = 0;
  std::size_t different_steps = 0;   ///< of these, those that differ from all before
  std::size_t left_out_streams = 0;  ///< streams without a track: it would cost memory that streams now share
  std::size_t left_out_requests = 0;  ///< their requests
  bool is_optimal = false;            ///< whether no placement needs fewer bytes

  /// The plan, which is valid while this object is neither changed nor destroyed.
  [[nodiscard]] memory_plan view() const noexcept {
    memory_plan plan = numbers;
    plan.kinds = kinds;
    plan.tracks = tracks;
    plan.steps = steps;
    plan.entries = entries;
    plan.deaths = deaths;
    return plan;
  }
};

}  // namespace tessera::plan
