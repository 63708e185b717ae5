// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdio>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <variant>

#include <tessera/trace/file.hpp>
#include <tessera/trace/read_snapshot.hpp>
#include <tessera/trace/verify.hpp>

#include "commands.hpp"
#include "input.hpp"

namespace {

using tessera::trace::input_error;
using tessera::trace::verification;

void print(const std::string& file, const verification& v) {
  std::printf("%s, device %zu: %s\n", file.c_str(), v.device, v.agrees() ? "agrees" : "differs");
  if (v.allocations == 0) std::puts("  there is no history to compare, only the state at the end");
  std::printf("  allocations      %zu, at the same address as on the GPU %zu\n", v.allocations,
              v.same_address);
  if (v.same_address != v.allocations)
    std::printf("  first elsewhere  allocation %zu\n", v.first_other_address);
  std::printf("  cudaMallocs      %zu, %s\n", v.segments,
              v.first_other_segment.empty() ? "sizes equal" : v.first_other_segment.c_str());
  std::printf("  peak reserved    %zu on the GPU, %zu here\n", v.peak_recorded, v.peak_here);
}

void print_json(const std::string& file, const verification& v, bool first) {
  std::printf(
      "%s{\"snapshot\": \"%s\", \"device\": %zu, \"agrees\": %s, \"allocations\": %zu, \"same_address\": "
      "%zu, "
      "\"segments\": %zu, \"segments_equal\": %s, \"peak_recorded\": %zu, \"peak_here\": %zu}",
      first ? "[" : ",\n ", replay::json_text(file).c_str(), v.device, v.agrees() ? "true" : "false",
      v.allocations, v.same_address, v.segments, v.first_other_segment.empty() ? "true" : "false",
      v.peak_recorded, v.peak_here);
}

}  // namespace

int replay::verify(const arguments& said) {
  int code = done;
  bool first = true;
  for (const std::string& file : said.files) {
    const auto bytes = tessera::trace::read_file(file, [&](std::string_view beginning) {
      const input_error error{file, "is no pickle; verify takes snapshots of PyTorch"};
      return is_pickle(beginning) ? std::nullopt : std::optional(error);
    });
    if (const auto* error = std::get_if<input_error>(&bytes)) return complain(error->text());
    const auto read = tessera::trace::read_snapshot(std::get<std::string>(bytes), file);
    if (const auto* error = std::get_if<input_error>(&read)) return complain(error->text());
    const auto& snapshot = std::get<tessera::trace::snapshot>(read);
    std::set<std::size_t> devices;
    for (const auto& segment : snapshot.segments) devices.insert(static_cast<std::size_t>(segment.device));
    for (std::size_t i = 0; i < snapshot.traces.size(); ++i) {
      if (!snapshot.traces[i].empty()) devices.insert(i);
    }
    if (devices.empty()) return complain(file + ": holds neither segments nor a history");
    for (const std::size_t device : devices) {
      const auto outcome = tessera::trace::verifier(snapshot, device).run();
      if (const auto* error = std::get_if<input_error>(&outcome)) return complain(error->text());
      const auto& result = std::get<verification>(outcome);
      if (!result.agrees()) code = differs;
      said.json ? print_json(title_of(file), result, first) : print(file, result);
      first = false;
    }
  }
  if (said.json) std::puts(first ? "[]" : "]");
  return code;
}
