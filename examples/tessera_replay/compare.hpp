// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <tessera/config/pytorch_conf.hpp>
#include <tessera/observe/snapshot.hpp>
#include <tessera/plan/memory_plan.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/trace/recording.hpp>

#include "commands.hpp"
#include "terminal.hpp"
#include "verify.hpp"

namespace replay {

/// The result of replaying a program with a recipe.
struct recipe_result {
  std::string recipe;
  std::size_t peak_reserved = 0;  // bytes
  std::size_t cached_at_end = 0;  // bytes
  tessera::provider::simulated_device::counts calls{};
  std::uintmax_t retries = 0;
  std::size_t failures = 0;
  std::size_t failed_sleeps = 0;        // sleeps and wakes that changed nothing
  const char* why = nullptr;            // the reason for the first of them
  double nanoseconds = 0;               // of host time per operation
  tessera::plan::plan_usage by_plan{};  // of a result with a plan
  std::string warning{};                // of the plan
  bool has_plan = false;
  bool as_recorded = false;  // the result uses the recorded settings and starts with the history
};

/// A recorded GPU run, and its replay with PyTorch's recipe under the same settings.
struct recorded_run {
  tessera::config::pytorch::settings settings;
  std::string conf;
  replay::verification outcome;
  std::size_t failures = 0;

  [[nodiscard]] bool by_2_14() const { return outcome.rules == std::string_view("2.14"); }
};
/// Replays the run of one device of a snapshot.
[[nodiscard]] replay::read_result<recorded_run> run_as_recorded(const tessera::observe::snapshot& source,
                                                                std::size_t device);

[[nodiscard]] inline double ratio(std::size_t part, std::size_t whole) {
  return whole == 0 ? 1.0 : static_cast<double>(part) / static_cast<double>(whole);
}
[[nodiscard]] inline double mib(std::size_t bytes) { return static_cast<double>(bytes) / 1048576.0; }

/// A recipe with its configuration string, and the name to print.
struct named_recipe {
  std::string recipe, conf, name;
};

/// Returns the recipes named on the command line, or `defaults` if there are none. With --conf, also the last
/// of them under these settings.
[[nodiscard]] std::vector<named_recipe> named_recipes(const arguments& args,
                                                      const std::vector<std::string>& defaults);

/// Appends the recipes that compare shows and that are missing.
[[nodiscard]] std::vector<named_recipe> add_compared_recipes(std::vector<named_recipe> recipes,
                                                             const recipe_list& known);

/// Says how many of all sleeps and wakes changed nothing with a recipe, and why the first did not.
[[nodiscard]] std::string failed_sleeps_text(const recipe_result& r, std::size_t sleeps);

/// Replays a program with each recipe. Reports each replay as a step named after `task`.
///
/// If the program was recorded on a GPU, the result with the same settings is that of the recorded run. If no
/// recipe has these settings, that result is inserted first. With a plan, the last result is that of the
/// plan, with the recipe of --recipe for what it does not serve.
///   Returns:  the results, or the error text
[[nodiscard]] std::variant<std::vector<recipe_result>, std::string> measure_recipes(
    const std::vector<named_recipe>& recipes, const tessera::trace::program& program, const arguments& args,
    steps& at, const std::string& task, const recorded_run* recorded = nullptr,
    const tessera::plan::memory_plan* plan = nullptr);

}  // namespace replay
