// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <tessera/replay/recording.hpp>
#include "verify.hpp"

#include "commands.hpp"
#include "comparison.hpp"
#include "input.hpp"
#include "json_list.hpp"
#include "terminal.hpp"

namespace {

using replay::mib;
using replay::ratio;
using replay::read_result;
using replay::recorded_run;
using replay::row;
using tessera::trace::input_error;

/// The run of a recorded GPU, or why there is none; null where nothing was recorded.
const recorded_run* run_in(const std::optional<read_result<recorded_run>>& recorded) {
  return recorded ? std::get_if<recorded_run>(&*recorded) : nullptr;
}
const input_error* reason_in(const std::optional<read_result<recorded_run>>& recorded) {
  return recorded ? std::get_if<input_error>(&*recorded) : nullptr;
}

void print(const std::string& title, const tessera::trace::program& program, const std::vector<row>& rows,
           const std::optional<read_result<recorded_run>>& recorded) {
  std::printf("%s: %zu operations\n", title.c_str(), program.events().size());
  std::printf("  %-20s %9s %9s %10s %8s %8s %7s %7s %7s %7s %7s %8s %6s\n", "recipe", "peak MiB", "over live",
              "cached MiB", "acquire", "release", "create", "destroy", "map", "unmap", "retries", "failures",
              "ns/op");
  for (const row& r : rows) {
    std::printf("  %-20s %9.1f %9.3f %10.1f %8ju %8ju %7ju %7ju %7ju %7ju %7ju %8zu %6.1f\n",
                (r.recipe + (r.as_recorded ? " *" : "")).c_str(), mib(r.peak_reserved),
                ratio(r.peak_reserved, program.peak_live()), mib(r.cached_at_end), r.calls.acquire,
                r.calls.release, r.calls.create, r.calls.destroy, r.calls.map, r.calls.unmap, r.retries,
                r.failures, r.nanoseconds);
  }
  std::printf("  %-20s %9.1f %9.3f\n", "(peak live)", mib(program.peak_live()), 1.0);
  if (const recorded_run* const run = run_in(recorded)) {
    const tessera::trace::verification& made = run->outcome;
    std::printf(
        "  * as recorded%s: from the state where the history begins, with %.1f MiB cached; memory goes back\n"
        "    where it went back on the GPU, which reserved %.1f MiB at most%s\n",
        run->conf.empty() ? "" : (", " + run->conf).c_str(), mib(made.cached_at_start),
        mib(made.peak_recorded), made.agrees() ? "" : "; decides otherwise than the GPU: see verify");
  }
  if (const input_error* const why = reason_in(recorded))
    std::printf("  no row is as recorded: %s\n", why->text().c_str());
  std::puts("");
}

void print_json(const tessera::trace::program& program, const std::vector<row>& rows,
                const std::optional<read_result<recorded_run>>& recorded) {
  std::printf("{\"trace\": \"%s\", \"operations\": %zu, \"peak_live\": %zu, ",
              replay::json_text(program.name()).c_str(), program.events().size(), program.peak_live());
  if (const recorded_run* const run = run_in(recorded)) {
    const tessera::trace::verification& made = run->outcome;
    std::printf(
        "\"device\": %zu, \"conf\": \"%s\", \"peak_recorded\": %zu, \"cached_at_start\": %zu, \"agrees\": "
        "%s, ",
        made.device, replay::json_text(run->conf).c_str(), made.peak_recorded, made.cached_at_start,
        made.agrees() ? "true" : "false");
  }
  if (const input_error* const why = reason_in(recorded))
    std::printf("\"not_as_recorded\": \"%s\", ", replay::json_text(why->text()).c_str());
  std::printf("\"recipes\": [");
  for (const row& r : rows) {
    std::printf(
        "%s\n  {\"recipe\": \"%s\", \"peak_reserved\": %zu, \"over_peak_live\": %.6f, \"cached_at_end\": "
        "%zu, \"acquire\": %ju, \"release\": %ju, \"create\": %ju, \"destroy\": %ju, \"map\": %ju, "
        "\"unmap\": %ju, "
        "\"retries\": %ju, \"failures\": %zu, \"host_ns_per_operation\": %.1f%s}",
        &r == rows.data() ? "" : ",", replay::json_text(r.recipe).c_str(), r.peak_reserved,
        ratio(r.peak_reserved, program.peak_live()), r.cached_at_end, r.calls.acquire, r.calls.release,
        r.calls.create, r.calls.destroy, r.calls.map, r.calls.unmap, r.retries, r.failures, r.nanoseconds,
        r.as_recorded ? ", \"as_recorded\": true" : "");
  }
  std::printf("]}");
}

}  // namespace

int replay::compare(const arguments& said) {
  const std::vector<wish> wishes = with_compared(wishes_of(said, {}));
  steps at(said.files.size() * wishes.size());
  json_list list(said.json);
  int code = done;
  const auto refuse = [&](const std::string& file, const std::string& wrong) {
    progress_line::clear();
    code = complain(wrong);
    list.add_error("trace", title_of(file), wrong);
  };
  for (const std::string& file : said.files) {
    const auto read = read_traces(file, said.device);
    if (const auto* const wrong = std::get_if<input_error>(&read)) {
      refuse(file, wrong->text());
      continue;
    }
    const auto& found = std::get<traces>(read);
    for (std::size_t i = 0; i < found.each.size(); ++i) {
      if (const auto* const wrong = std::get_if<input_error>(&found.each[i])) {
        refuse(file, wrong->text());
        continue;
      }
      const tessera::trace::program program(std::get<tessera::trace::recording>(found.each[i]));
      std::optional<read_result<recorded_run>> recorded;
      if (found.source) recorded = run_as_recorded(*found.source, found.devices[i]);
      const auto rows = rows_of(wishes, program, said, at, program.name(), run_in(recorded));
      if (const auto* const wrong = std::get_if<std::string>(&rows)) {
        refuse(file, *wrong);
        continue;
      }
      progress_line::clear();
      list.next();
      const auto& shown = std::get<std::vector<row>>(rows);
      const std::string title = program.name() + fraction_text(said, ", --memory-fraction ");
      said.json ? print_json(program, shown, recorded) : print(title, program, shown, recorded);
    }
  }
  return code;
}
