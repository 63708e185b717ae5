// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdio>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <tessera/trace/program.hpp>

#include "commands.hpp"
#include "comparison.hpp"
#include "input.hpp"
#include "terminal.hpp"

namespace {

using replay::mib;
using replay::ratio;
using replay::row;

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
  const std::vector<wish> wishes = with_compared(wishes_of(said, {}));
  steps at(said.files.size() * wishes.size());
  for (std::size_t i = 0; i < said.files.size(); ++i) {
    const std::string& file = said.files[i];
    const auto recording = read_recording(file);
    if (const auto* wrong = std::get_if<tessera::trace::input_error>(&recording))
      return complain(wrong->text());
    const tessera::trace::program program(std::get<tessera::trace::recording>(recording));
    const auto found = rows_of(wishes, program, said, at, title_of(file));
    if (const auto* const wrong = std::get_if<std::string>(&found)) return complain(*wrong);
    const auto& rows = std::get<std::vector<row>>(found);
    progress_line::clear();
    said.json ? print_json(title_of(file), program, rows, i == 0) : print(title_of(file), program, rows);
  }
  if (said.json) std::puts("]");
  return done;
}
