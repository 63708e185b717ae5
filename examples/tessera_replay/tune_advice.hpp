// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <tessera/replay/recording.hpp>

#include "tune_judge.hpp"
#include "tune_search.hpp"

namespace replay::tune {

/// What is asked.
struct question {
  std::size_t capacity = 0;  ///< bytes of the device
  bool has_capacity = false;
  double max_ns = 0;  ///< host nanoseconds for each operation; 0 where none were named
  std::vector<std::pair<std::string, composition>> shipped{};  ///< the recipes that there are, pytorch first
  std::function<void(const std::string&)> progress{};
};

/// A candidate and its host time.
struct row {
  candidate what;
  double host_ns = 0;  ///< for each operation, chosen while the program runs
};

/// What a policy of the winner buys: the winner with that axis as in pytorch.
struct knob {
  std::size_t axis = 0;
  row without;
};

/// What is advised.
struct advice {
  row pytorch;
  row shipped;  ///< the shipped recipe that needs least memory; within --max-ns, or where none is, beyond it
  row winner;
  bool beats_pytorch = false;
  bool keeps_max_ns = true;
  reason why = reason::least_memory;  ///< the winner is it
  std::vector<row> front;             ///< the least memory first
  std::vector<knob> knobs;            ///< of the axes in which the winner differs
  std::vector<std::string> left_out;  ///< shipped recipes that ask more of the program
  std::uint64_t device_limit_ns = 0;
  double host_limit_ns = 0;   ///< as compiled
  double compiled_share = 1;  ///< of the host times, which is what they would be if compiled
  double noise = 0;           ///< of host times, as a share
  /// What is reserved over what lives where every size is 3 % larger, for which nothing was tuned; 0 with a capacity.
  double winner_elsewhere = 0;
  double pytorch_elsewhere = 0;
  std::size_t tried = 0;  ///< compositions
  bool several_streams = false;
};

[[nodiscard]] advice advise(const trace::program& program, const question& asked);

/// The rows of which none is surpassed: none takes as little of each, and less of one by so much that it counts.
[[nodiscard]] std::vector<row> front_of(std::vector<row> rows, double noise);

/// Whether a row takes less than another of something by so much that it counts, memory first, then device time, then
/// host time, and about as much of what comes before that.
[[nodiscard]] bool beats(const row& a, const row& b, double noise);

}  // namespace replay::tune
