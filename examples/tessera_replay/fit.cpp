// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdio>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <tessera/plan/planned.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/trace/recording.hpp>

#include "capacity.hpp"
#include "commands.hpp"
#include "input.hpp"
#include "plan.hpp"
#include "recipes.hpp"
#include "terminal.hpp"

namespace {

/// Whether the program completes with this capacity, and with the plan if there is one. Sets `used` to what the
/// plan served.
bool completes(const tessera::trace::program& program, const replay::any_recipe& recipe,
               const tessera::plan::made_plan* plan, std::size_t capacity, tessera::plan::plan_usage& used) {
  const tessera::plan::memory_plan view = plan != nullptr ? plan->view() : tessera::plan::memory_plan{};
  replay::simulated_allocator pool =
      recipe.make(replay::device_of(capacity), {.plan = plan != nullptr ? &view : nullptr});
  const bool works = tessera::trace::replay(program, pool) == 0;
  if (plan != nullptr) used = pool.statistics().by_plan;
  return works;
}

/// Larger capacities to test, in percent above the result.
constexpr std::size_t probed[] = {1, 2, 3, 5, 8, 12, 18, 25};

std::string with_commas(const std::vector<std::size_t>& numbers) {
  std::vector<std::string> texts;
  for (const std::size_t number : numbers) texts.push_back(std::to_string(number));
  return replay::listed(texts);
}

}  // namespace

int replay::commands::fit(const arguments& args) {
  const auto read = read_plan(args);
  if (const auto* const wrong = std::get_if<input_error>(&read)) return print_error(wrong->text());
  const auto& plan = std::get<std::optional<tessera::plan::made_plan>>(read);
  return with_trace(args, [&](const tessera::trace::program& program, const any_recipe& recipe) {
    const std::size_t max_capacity = args.has_capacity ? args.capacity : 2 * tessera::max_request;
    tessera::plan::plan_usage used;
    const auto completes_by = [&](const tessera::plan::made_plan* by) {
      return [&, by](std::size_t capacity) {
        progress_line::show(program.name() + ": with " + std::to_string(capacity));
        return completes(program, recipe, by, capacity, used);
      };
    };
    const auto completes_with = completes_by(plan ? &*plan : nullptr);
    const auto found = min_capacity(program.min_reserved(), max_capacity, completes_with);
    if (!found)
      return print_error(args.files[0] + ": does not complete with " + std::to_string(max_capacity) +
                         " bytes" + fraction_text(args, " and --memory-fraction "));
    const std::size_t enough = *found;
    std::vector<std::size_t> failing;
    for (const std::size_t percent : probed) {
      const std::size_t more = enough + enough / 100 * percent + enough % 100 * percent / 100;
      if (!completes_with(more)) failing.push_back(more);
    }
    std::string warning;
    if (plan) {
      const auto alone = min_capacity(program.min_reserved(), max_capacity, completes_by(nullptr));
      (void)completes_with(enough);
      warning = plan_warning(used, enough, alone.value_or(tessera::unlimited));
    }
    progress_line::clear();
    const double over = static_cast<double>(enough) / static_cast<double>(program.peak_live());
    const std::string note = plan ? plan_note(plan->view(), program.source()) : std::string();
    if (args.json) {
      std::printf(
          "{\"trace\": \"%s\", \"recipe\": \"%s\", \"capacity\": %zu, \"peak_live\": %zu, "
          "\"over_peak_live\": %.6f%s, \"also_fails_with\": [%s]%s}\n",
          json_text(program.name()).c_str(), args.recipe.c_str(), enough, program.peak_live(), over,
          plan ? plan_json(used, warning).c_str() : "", with_commas(failing).c_str(),
          plan ? (", \"note\": \"" + json_text(note) + "\"").c_str() : "");
      return +done;
    }
    std::printf("%s: completes with a capacity of %zu and not with %zu; peak live %zu, ratio %.4f\n",
                (title_of(args, program) + (plan ? ", --plan " + args.plan : "")).c_str(), enough, enough - 1,
                program.peak_live(), over);
    if (plan) std::printf("  %s\n", served_text(used).c_str());
    if (!note.empty()) std::printf("  note: %s\n", note.c_str());
    if (!warning.empty()) std::printf("  warning: %s\n", warning.c_str());
    if (!failing.empty())
      std::printf("  also fails with %s: with more memory, blocks lie at other addresses\n",
                  with_commas(failing).c_str());
    return +done;
  });
}
