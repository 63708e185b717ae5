// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <tessera/observe/snapshot.hpp>
#include <tessera/plan/memory_plan.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/trace/recording.hpp>

#include "commands.hpp"
#include "input.hpp"
#include "run_settings.hpp"
#include "terminal.hpp"

namespace replay {

/// The result of replaying a program with a recipe.
struct recipe_result {
  std::string recipe;
  std::size_t peak_reserved = 0;  // bytes
  std::size_t least_peak = 0;     // with random addresses; 0 if none were tried
  std::size_t largest_peak = 0;   // likewise
  std::size_t cached_at_end = 0;  // bytes
  tessera::provider::simulated_device::counts calls{};
  std::uintmax_t retries = 0;
  std::size_t failures = 0;             // also of requests that failed in the recorded run
  std::size_t failed_sleeps = 0;        // sleeps and wakes that changed nothing
  const char* why = nullptr;            // the reason for the first of them
  double nanoseconds = 0;               // of host time per operation
  tessera::plan::plan_usage by_plan{};  // of a result with a plan
  std::string warning{};                // of the plan
  bool has_plan = false;
  bool as_recorded = false;  // what the GPU did, not a replay: it begins with its cache
};

/// What the history of a GPU says about its run. No replay, so it is named "recorded" and no recipe.
struct recorded_run {
  recipe_result did{.recipe = "recorded", .as_recorded = true};
  std::size_t cached_at_start = 0;  // bytes
  std::string conf;
  std::optional<bool> agrees{};  // whether a recipe of PyTorch decides likewise; nothing if that is unknown
};
/// Reads the run of a trace from a snapshot that has a history.
///   Returns:  an error if the history contradicts itself
[[nodiscard]] replay::read_result<recorded_run> find_recorded_run(const tessera::observe::snapshot& source,
                                                                  const run_trace& trace);

[[nodiscard]] inline double ratio(std::size_t part, std::size_t whole) {
  return whole == 0 ? 1.0 : static_cast<double>(part) / static_cast<double>(whole);
}
[[nodiscard]] inline double mib(std::size_t bytes) { return static_cast<double>(bytes) / 1048576.0; }

/// A recipe with its configuration string, and the name to print.
struct named_recipe {
  std::string recipe, conf, name;
};

/// Returns the recipes named on the command line, or `defaults` if there are none. With --conf, also the last
/// of them, or the recorded one, under these settings.
[[nodiscard]] std::vector<named_recipe> named_recipes(const arguments& args, const run_settings& used,
                                                      const std::vector<std::string>& defaults);

/// Appends the recipes of `compared` that are missing, and the recorded settings if no recipe has them by default. Leaves
/// out a recipe that reserves a share of a device whose capacity is unknown.
[[nodiscard]] std::vector<named_recipe> add_compared_recipes(std::vector<named_recipe> recipes,
                                                             const run_settings& used);
/// Says which recipe add_compared_recipes left out, and why; empty if it left out none.
[[nodiscard]] std::string left_out_text(const std::vector<named_recipe>& recipes, const run_settings& used);

/// Removes recipes without a limit that can be set, if the replay has a memory fraction. A recipe that the command line names
/// beside --memory-fraction stays, and is an error.
///   Returns:  which ones, and why; empty if there are none
[[nodiscard]] std::string leave_out_unlimited(std::vector<named_recipe>& recipes, const run_settings& used,
                                              const arguments& args);

/// Says how many of all sleeps and wakes changed nothing with a recipe, and why the first did not.
[[nodiscard]] std::string failed_sleeps_text(const recipe_result& r, std::size_t sleeps);

/// Replays a program with each recipe, on an empty device of the same capacity. Reports each replay as a step named
/// after `task`. With a plan, the last result is that of the plan, with the recipe of `used` for what it does not serve.
///   Returns:  the results, or the error text
[[nodiscard]] std::variant<std::vector<recipe_result>, std::string> measure_recipes(
    const std::vector<named_recipe>& recipes, const tessera::trace::program& program,
    const run_settings& used, steps& at, const std::string& task,
    const tessera::plan::memory_plan* plan = nullptr, std::size_t addresses = 0);

}  // namespace replay
