// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdio>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <tessera/plan/memory_plan.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/trace/recording.hpp>

#include "capacity.hpp"
#include "commands.hpp"
#include "input.hpp"
#include "plan.hpp"
#include "recipes.hpp"
#include "terminal.hpp"

namespace {

/// Whether all requests are served, without those that failed in the recorded run unless they are wanted.
bool serves_all(const tessera::trace::program& program, replay::simulated_allocator& pool,
                bool with_refused) {
  std::size_t refused = 0;
  const std::size_t failures = tessera::trace::replay(
      program, pool, [](std::size_t) {},
      [&](std::size_t i, const void* p) {
        refused += p == nullptr && program.events()[i].what == tessera::trace::event::kind::refused;
      });
  return failures == 0 && (refused == 0 || !with_refused);
}

/// Whether the program completes with this capacity, and with the plan if there is one. Sets `used` to what the
/// plan served.
bool completes(const tessera::trace::program& program, const replay::any_recipe& recipe,
               const tessera::plan::made_plan* plan, std::size_t capacity, bool with_refused,
               tessera::plan::plan_usage& used) {
  const tessera::plan::memory_plan view = plan != nullptr ? plan->view() : tessera::plan::memory_plan{};
  replay::simulated_allocator pool =
      recipe.make(replay::device_of(capacity), {.plan = plan != nullptr ? &view : nullptr});
  const bool works = serves_all(program, pool, with_refused);
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

/// Says that no capacity up to that of `used` is enough.
void print_none(const replay::arguments& args, const tessera::trace::program& program,
                const replay::run_settings& used) {
  if (args.json) {
    std::printf("{\"trace\": \"%s\", \"recipe\": \"%s\", \"capacity\": null, \"peak_live\": %zu, %s}\n",
                replay::json_text(program.name()).c_str(), replay::json_text(used.recipe).c_str(),
                program.peak_live(), settings_json(used).c_str());
    return;
  }
  std::printf("%s: does not complete with a capacity of %s; peak live %zu\n  used: %s\n",
              title_of(used, program.name()).c_str(), replay::counted(used.capacity, "byte").c_str(),
              program.peak_live(), settings_text(used).c_str());
}

/// Finds the capacity for one trace.
replay::verb_result fit_one(const replay::arguments& args, const replay::run_trace& trace,
                            replay::run_settings used, const std::optional<tessera::plan::made_plan>& plan) {
  using namespace replay;
  // A capacity is wanted, so the recorded one is no limit.
  used.limit = tessera::unlimited;
  used.capacity = args.has_capacity ? args.capacity : 2 * tessera::max_request;
  used.capacity_from = args.has_capacity ? setting_source::given : setting_source::by_default;
  return with_recipe(
      used, trace.made, [&](const tessera::trace::program& program, const any_recipe& recipe) -> int {
        tessera::plan::plan_usage served;
        const auto completes_by = [&](const tessera::plan::made_plan* by, bool with_refused) {
          return [&, by, with_refused](std::size_t capacity) {
            progress_line::show(program.name() + ": with " + std::to_string(capacity));
            return completes(program, recipe, by, capacity, with_refused, served);
          };
        };
        const auto* const by = plan ? &*plan : nullptr;
        const auto completes_with = completes_by(by, false);
        const auto found = min_capacity(program.min_reserved(), used.capacity, completes_with);
        if (!found) {
          progress_line::clear();
          print_none(args, program, used);
          return differs;
        }
        const std::size_t enough = *found;
        std::vector<std::size_t> failing;
        for (const std::size_t percent : probed) {
          const std::size_t more = enough + enough / 100 * percent + enough % 100 * percent / 100;
          if (!completes_with(more)) failing.push_back(more);
        }
        std::optional<std::size_t> for_all;
        if (program.refusals() != 0) for_all = min_capacity(enough, used.capacity, completes_by(by, true));
        std::string warning;
        if (plan) {
          const auto alone =
              min_capacity(program.min_reserved(), used.capacity, completes_by(nullptr, false));
          (void)completes_with(enough);
          warning = plan_warning(served, enough, alone.value_or(tessera::unlimited));
        }
        progress_line::clear();
        const double over = static_cast<double>(enough) / static_cast<double>(program.peak_live());
        const std::string note = plan ? plan_note(plan->view(), program.source()) : std::string();
        if (args.json) {
          std::string refused;
          if (program.refusals() != 0)
            refused = ", \"refused_requests\": " + std::to_string(program.refusals()) +
                      ", \"capacity_with_refused\": " + (for_all ? std::to_string(*for_all) : "null");
          std::printf(
              "{\"trace\": \"%s\", \"recipe\": \"%s\", \"capacity\": %zu, \"peak_live\": %zu, "
              "\"over_peak_live\": %.6f, %s%s%s, \"also_fails_with\": [%s]%s}\n",
              json_text(program.name()).c_str(), json_text(used.recipe).c_str(), enough, program.peak_live(),
              over, settings_json(used).c_str(), refused.c_str(),
              plan ? plan_json(served, warning).c_str() : "", with_commas(failing).c_str(),
              plan ? (", \"note\": \"" + json_text(note) + "\"").c_str() : "");
          return done;
        }
        std::printf("%s: completes with a capacity of %zu and not with %zu; peak live %zu, ratio %.4f\n",
                    (title_of(used, program.name()) + (plan ? ", --plan " + args.plan : "")).c_str(), enough,
                    enough - 1, program.peak_live(), over);
        if (plan) std::printf("  %s\n", served_text(served).c_str());
        if (!note.empty()) std::printf("  note: %s\n", note.c_str());
        if (!warning.empty()) std::printf("  warning: %s\n", warning.c_str());
        if (!failing.empty())
          std::printf("  also fails with %s: with more memory, blocks lie at other addresses\n",
                      with_commas(failing).c_str());
        if (program.refusals() != 0)
          std::printf("  %s failed in the recorded run and may fail here; %s\n",
                      counted(program.refusals(), "request").c_str(),
                      for_all ? ("a capacity of " + std::to_string(*for_all) + " serves all").c_str()
                              : "no capacity up to the largest serves all");
        std::printf("  used: %s, %s\n", recipe_text(used).c_str(),
                    args.has_capacity
                        ? ("capacities up to " + counted(used.capacity, "byte") + " (given)").c_str()
                        : "capacities without a bound (default)");
        if (trace.known.capacity != 0)
          std::printf("  the recorded device had %s (%s)\n", counted(trace.known.capacity, "byte").c_str(),
                      text_of(setting_source::deduced));
        return done;
      });
}

}  // namespace

int replay::commands::fit(const arguments& args) {
  const auto read = read_plan(args);
  if (const auto* const wrong = std::get_if<input_error>(&read)) return print_error(wrong->text());
  const auto& plan = std::get<std::optional<tessera::plan::made_plan>>(read);
  return with_each_trace(args, [&](const run_trace& trace, const run_settings& used, const traces&) {
    return fit_one(args, trace, used, plan);
  });
}
