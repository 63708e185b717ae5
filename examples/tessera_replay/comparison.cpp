// SPDX-License-Identifier: Apache-2.0
#include "comparison.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <tessera/caching_allocator.hpp>
#include <tessera/observe/snapshot.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/recipe/pytorch.hpp>
#include <tessera/recipe/pytorch_2_14.hpp>
#include <tessera/replay/recording.hpp>
#include "verify.hpp"

#include "commands.hpp"
#include "input.hpp"

namespace {

template <typename Recipe>
replay::row measure(const std::string& name, const tessera::trace::program& program,
                    const tessera::policies<Recipe>& chosen, std::size_t capacity) {
  replay::row found{.recipe = name};
  std::array<double, 3> times{};
  for (double& time : times) {
    tessera::caching_allocator<Recipe, tessera::simulated_device> pool{replay::device_of(capacity), chosen};
    const auto begin = std::chrono::steady_clock::now();
    found.failures = tessera::trace::replay(program, pool);
    time = std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin).count();
    const auto& counted = pool.statistics();
    found.peak_reserved = pool.device().peak_used();
    found.cached_at_end = pool.now().cached;
    found.calls = pool.device().calls();
    found.retries = counted.num_alloc_retries;
  }
  std::sort(times.begin(), times.end());
  found.nanoseconds = times[1] / static_cast<double>(std::max<std::size_t>(1, program.events().size()));
  return found;
}

template <typename Recipe, typename Family>
inline constexpr bool is_of = std::is_same_v<Recipe, typename Family::template recipe_at<0>> ||
                              std::is_same_v<Recipe, typename Family::template recipe_at<1>>;

/// Whether a recipe and its policies are those of a recorded run.
template <typename Recipe>
bool is_recorded(const tessera::policies<Recipe>& chosen, const replay::recorded_run& run) {
  constexpr bool by_2_14 = is_of<Recipe, tessera::pytorch_2_14_family>;
  if constexpr (by_2_14 || is_of<Recipe, tessera::pytorch_family>) {
    return run.by_2_14() == by_2_14 && Recipe::serves(run.settings) &&
           chosen == Recipe::configured(run.settings);
  }
  return false;
}

/// Sets what is known of a recorded run.
void take_recorded(replay::row& to, const replay::recorded_run& from) {
  const tessera::trace::verification& made = from.outcome;
  to.as_recorded = true;
  to.peak_reserved = made.peak_here;
  to.cached_at_end = made.cached_at_end;
  to.calls = {};
  to.calls.acquire = made.calls.acquire;
  to.calls.release = made.calls.release;
  to.calls.create = made.calls.create;
  to.calls.destroy = made.calls.destroy;
  to.calls.map = made.calls.map;
  to.calls.unmap = made.calls.unmap;
  to.retries = 0;
  to.failures = from.failures;
}

}  // namespace

std::vector<replay::wish> replay::wishes_of(const arguments& said,
                                            const std::vector<std::string>& otherwise) {
  std::vector<wish> wishes;
  if (!said.conf.empty()) wishes.push_back({said.recipe, said.conf, said.recipe + ", with --conf"});
  for (const std::string& name : said.recipes.empty() ? otherwise : said.recipes) {
    const auto same = [&](const wish& w) { return w.name == name; };
    if (std::none_of(wishes.begin(), wishes.end(), same)) wishes.push_back({name, "", name});
  }
  return wishes;
}

std::vector<replay::wish> replay::with_compared(std::vector<wish> wishes) {
  for (const char* const name : compared) {
    if (std::none_of(wishes.begin(), wishes.end(), [&](const wish& w) { return w.name == name; }))
      wishes.push_back({name, "", name});
  }
  return wishes;
}

tessera::trace::read_result<replay::recorded_run> replay::run_as_recorded(
    const tessera::trace::snapshot& source, std::size_t device) {
  using action = tessera::trace::snapshot::action;
  auto outcome = tessera::trace::verifier(source, device).run();
  const auto* const made = std::get_if<tessera::trace::verification>(&outcome);
  if (made == nullptr) return std::get<tessera::trace::input_error>(outcome);
  const auto entries = source.trace_of(device);
  const auto failures =
      std::count_if(entries.begin(), entries.end(), [](const auto& e) { return e.what == action::oom; });
  return recorded_run{tessera::trace::settings_of(source), source.configured.conf, *made,
                      static_cast<std::size_t>(failures)};
}

std::variant<std::vector<replay::row>, std::string> replay::rows_of(const std::vector<wish>& wishes,
                                                                    const tessera::trace::program& program,
                                                                    const arguments& said, steps& at,
                                                                    const std::string& task,
                                                                    const recorded_run* recorded) {
  std::vector<row> rows;
  for (const wish& w : wishes) {
    at.next(task + ": " + w.name);
    std::string wrong =
        choose_recipe(w.recipe, w.conf, said.memory_fraction,
                      [&]<typename Recipe>(const tessera::policies<Recipe>& chosen) {
                        rows.push_back(measure<Recipe>(w.name, program, chosen, said.capacity));
                        if (recorded != nullptr && is_recorded(chosen, *recorded))
                          take_recorded(rows.back(), *recorded);
                      });
    if (!wrong.empty()) return wrong;
  }
  if (recorded != nullptr &&
      std::none_of(rows.begin(), rows.end(), [](const row& r) { return r.as_recorded; })) {
    row added{.recipe = recorded->by_2_14() ? "pytorch_2_14" : "pytorch"};
    if (recorded->settings.expandable_segments) added.recipe += "_expandable";
    take_recorded(added, *recorded);
    rows.insert(rows.begin(), added);
  }
  return rows;
}
