// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include <tessera/plan/check_plan.hpp>
#include <tessera/trace/recording.hpp>

#include "tessera_replay/planner/make_plan.hpp"

namespace plan_tests {

using namespace tessera;

/// Writes a recording, one operation after the other.
struct recorder {
  trace::recording made{"steps", {}};
  std::uint64_t next = 0;

  using kind = trace::event::kind;
  std::uint64_t allocate(std::size_t bytes, std::uint64_t stream = 0) {
    made.events.push_back({kind::allocate, next, bytes, stream_id{stream}});
    return next++;
  }
  void free(std::uint64_t id) { made.events.push_back({kind::free, id}); }
  void begin_step(std::uint64_t key = 0) { made.events.push_back({kind::begin_step, key}); }
  /// Makes requests. Each block lives until the request after the next, or to the end.
  void step(std::initializer_list<std::size_t> bytes, std::uint64_t stream = 0) {
    const std::uint64_t first = next;
    for (const std::size_t b : bytes) {
      if (next >= first + 2) free(next - 2);
      allocate(b, stream);
    }
    if (next >= first + 2) free(next - 2);
    free(next - 1);
  }
};

[[nodiscard]] inline plan::made_plan make(const trace::recording& source, plan::make_options options = {}) {
  options.effort = 0.05;
  return plan::make(source, options);
}

}  // namespace plan_tests
