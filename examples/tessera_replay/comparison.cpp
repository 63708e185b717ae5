// SPDX-License-Identifier: Apache-2.0
#include "comparison.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <tessera/caching_allocator.hpp>
#include <tessera/trace/program.hpp>

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

std::variant<std::vector<replay::row>, std::string> replay::rows_of(const std::vector<wish>& wishes,
                                                                    const tessera::trace::program& program,
                                                                    const arguments& said, steps& at,
                                                                    const std::string& task) {
  std::vector<row> rows;
  for (const wish& w : wishes) {
    at.next(task + ": " + w.name);
    std::string wrong =
        choose_recipe(w.recipe, w.conf, said.memory_fraction,
                      [&]<typename Recipe>(const tessera::policies<Recipe>& chosen) {
                        rows.push_back(measure<Recipe>(w.name, program, chosen, said.capacity));
                      });
    if (!wrong.empty()) return wrong;
  }
  return rows;
}
