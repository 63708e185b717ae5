// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <tessera/config/pytorch.hpp>
#include <tessera/observe/snapshot.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/replay/recording.hpp>

#include "commands.hpp"
#include "terminal.hpp"
#include "verify.hpp"

namespace replay {

/// What a recipe made of a program.
struct row {
  std::string recipe;
  std::size_t peak_reserved = 0;  // bytes that the device gave at most
  std::size_t cached_at_end = 0;  // bytes
  tessera::simulated_device::counts calls{};
  std::uintmax_t retries = 0;
  std::size_t failures = 0;
  double nanoseconds = 0;    // of host time for each operation
  bool as_recorded = false;  // of the settings under which a GPU was recorded, from where its history begins
};

/// What a recorded GPU did, and what PyTorch's recipe decides under its settings, from the state where the history begins.
struct recorded_run {
  tessera::config::pytorch_settings settings;
  std::string conf;
  replay::verification outcome;
  std::size_t failures = 0;

  [[nodiscard]] bool by_2_14() const { return outcome.rules == std::string_view("2.14"); }
};
/// The run of one device of a snapshot; or why there is none.
[[nodiscard]] tessera::trace::read_result<recorded_run> run_as_recorded(
    const tessera::trace::snapshot& source, std::size_t device);

[[nodiscard]] inline double ratio(std::size_t part, std::size_t whole) {
  return whole == 0 ? 1.0 : static_cast<double>(part) / static_cast<double>(whole);
}
[[nodiscard]] inline double mib(std::size_t bytes) { return static_cast<double>(bytes) / 1048576.0; }

/// A recipe as it was asked for, and the name under which it is shown.
struct wish {
  std::string recipe, conf, name;
};

/// The recipes that were named, or if none was, those; under settings also the last that was named.
[[nodiscard]] std::vector<wish> wishes_of(const arguments& said, const std::vector<std::string>& otherwise);

/// The same, and behind them each of `compared` that is not among them.
[[nodiscard]] std::vector<wish> with_compared(std::vector<wish> wishes);

/// What each wish makes of a program on the device that was said; or what is wrong. Each is a step, named behind `task`.
/// Where the program was recorded on a GPU, the row for its settings is of that run; where no wish has these settings, it
/// comes first.
[[nodiscard]] std::variant<std::vector<row>, std::string> rows_of(const std::vector<wish>& wishes,
                                                                  const tessera::trace::program& program,
                                                                  const arguments& said, steps& at,
                                                                  const std::string& task,
                                                                  const recorded_run* recorded = nullptr);

}  // namespace replay
