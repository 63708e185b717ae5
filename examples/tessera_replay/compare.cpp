// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <string>
#include <variant>
#include <vector>

#include <tessera/caching_allocator.hpp>
#include <tessera/trace/program.hpp>

#include "commands.hpp"
#include "input.hpp"

namespace {

struct row {
  std::string recipe;
  std::size_t peak_reserved = 0;  // bytes
  std::size_t cached_at_end = 0;  // bytes
  tessera::simulated_device::counts calls{};
  std::uintmax_t retries = 0;
  std::size_t failures = 0;
  double nanoseconds = 0;  // of host time for each operation
};

template <typename Recipe>
row measure(const std::string& name, const tessera::trace::program& program,
            const tessera::policies<Recipe>& chosen, std::size_t capacity) {
  row found{.recipe = name};
  std::array<double, 3> times{};
  for (double& time : times) {
    tessera::caching_allocator<Recipe, tessera::simulated_device> pool{replay::device_of(capacity), chosen};
    const auto begin = std::chrono::steady_clock::now();
    found.failures = tessera::trace::replay(program, pool);
    time = std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin).count();
    const auto& counted = pool.statistics();
    found.peak_reserved = static_cast<std::size_t>(counted.all.reserved_bytes.peak);
    found.cached_at_end = pool.now().cached;
    found.calls = pool.device().calls();
    found.retries = counted.num_alloc_retries;
  }
  std::sort(times.begin(), times.end());
  found.nanoseconds = times[1] / static_cast<double>(std::max<std::size_t>(1, program.events().size()));
  return found;
}

double ratio(std::size_t part, std::size_t whole) {
  return whole == 0 ? 1.0 : static_cast<double>(part) / static_cast<double>(whole);
}
double mib(std::size_t bytes) { return static_cast<double>(bytes) / 1048576.0; }

void print(const std::string& trace, const tessera::trace::program& program, const std::vector<row>& rows) {
  std::printf("%s: %zu operations\n", trace.c_str(), program.events().size());
  std::printf("  %-20s %9s %9s %10s %8s %8s %7s %7s %7s %7s %7s %8s %6s\n", "recipe", "peak MiB", "over live",
              "cached MiB", "acquire", "release", "create", "destroy", "map", "unmap", "retries", "failures",
              "ns/op");
  for (const row& r : rows) {
    std::printf("  %-20s %9.1f %9.3f %10.1f %8ju %8ju %7ju %7ju %7ju %7ju %7ju %8zu %6.1f\n",
                r.recipe.c_str(), mib(r.peak_reserved), ratio(r.peak_reserved, program.peak_live()),
                mib(r.cached_at_end), r.calls.acquire, r.calls.release, r.calls.create, r.calls.destroy,
                r.calls.map, r.calls.unmap, r.retries, r.failures, r.nanoseconds);
  }
  std::printf("  %-20s %9.1f %9.3f\n\n", "(peak live)", mib(program.peak_live()), 1.0);
}

void print_json(const std::string& trace, const tessera::trace::program& program,
                const std::vector<row>& rows, bool first) {
  std::printf("%s{\"trace\": \"%s\", \"operations\": %zu, \"peak_live\": %zu, \"recipes\": [",
              first ? "[" : ",\n ", replay::json_text(trace).c_str(), program.events().size(),
              program.peak_live());
  for (const row& r : rows) {
    std::printf(
        "%s\n  {\"recipe\": \"%s\", \"peak_reserved\": %zu, \"over_peak_live\": %.6f, \"cached_at_end\": "
        "%zu, \"acquire\": %ju, \"release\": %ju, \"create\": %ju, \"destroy\": %ju, \"map\": %ju, "
        "\"unmap\": %ju, "
        "\"retries\": %ju, \"failures\": %zu, \"host_ns_per_operation\": %.1f}",
        &r == rows.data() ? "" : ",", replay::json_text(r.recipe).c_str(), r.peak_reserved,
        ratio(r.peak_reserved, program.peak_live()), r.cached_at_end, r.calls.acquire, r.calls.release,
        r.calls.create, r.calls.destroy, r.calls.map, r.calls.unmap, r.retries, r.failures, r.nanoseconds);
  }
  std::printf("]}");
}

}  // namespace

int replay::compare(const arguments& said) {
  const std::size_t wide = said.files.size();
  for (std::size_t i = 0; i < wide; ++i) {
    const std::string& file = said.files[i];
    const auto recording = read_recording(file);
    if (const auto* wrong = std::get_if<tessera::trace::input_error>(&recording))
      return complain(wrong->text());
    const tessera::trace::program program(std::get<tessera::trace::recording>(recording));
    std::vector<row> rows;
    const auto add = [&](const std::string& recipe, const std::string& conf, const std::string& name) {
      progress("[" + std::to_string(i + 1) + "/" + std::to_string(wide) + "] " + title_of(file) + ": " +
               name);
      return choose_recipe(recipe, conf, said.capacity,
                           [&]<typename Recipe>(const tessera::policies<Recipe>& chosen) {
                             rows.push_back(measure<Recipe>(name, program, chosen, said.capacity));
                           });
    };
    if (!said.conf.empty()) {
      const std::string wrong = add(said.recipe, said.conf, said.recipe + ", with --conf");
      if (!wrong.empty()) return complain(wrong);
    }
    for (const char* const name : compared) (void)add(name, "", name);
    progress("");
    said.json ? print_json(title_of(file), program, rows, i == 0) : print(title_of(file), program, rows);
  }
  if (said.json) std::puts("]");
  return done;
}
