// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cinttypes>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <tessera/observe/snapshot.hpp>
#include <tessera/trace/csv.hpp>
#include <tessera/trace/recording.hpp>
#include "call_site.hpp"
#include "read_snapshot.hpp"
#include "verify.hpp"

#include "commands.hpp"
#include "input.hpp"
#include "terminal.hpp"

namespace {

using replay::verification;
using tessera::trace::input_error;

constexpr const char* no_allocation = "the history has no allocation";

std::string hex(std::uint64_t address) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%" PRIx64, address);
  return text;
}

void print(const std::string& file, const verification& v, const tessera::observe::snapshot& source) {
  const char* const found = !v.has_compared() ? "nothing to verify" : v.agrees() ? "agrees" : "differs";
  const bool is_newer = v.has_compared() && std::string_view(v.rules) != "2.6";
  std::printf("%s, device %zu: %s%s%s\n", file.c_str(), v.device, found,
              is_newer ? ", under the rules of PyTorch " : "", is_newer ? v.rules : "");
  if (!v.has_compared()) {
    std::printf("  %s\n", no_allocation);
    return;
  }
  std::printf("  allocations      %zu, %zu of them at the GPU's address\n", v.allocations, v.same_address);
  if (v.same_address != v.allocations) {
    const auto& e = source.trace_of(v.device)[v.other_entry];
    const std::string line = replay::call_site(source.stacks, e.stack);
    std::printf("  first difference allocation %zu, entry %zu of the history: %s, at %s on the GPU, %s%s%s\n",
                v.first_other_address, v.other_entry, replay::counted(e.size, "byte").c_str(),
                hex(v.other_expected).c_str(),
                v.other_given != 0 ? ("at " + hex(v.other_given) + " replayed").c_str()
                                   : "and without memory for it replayed",
                line.empty() ? "" : ", ", line.c_str());
  }
  const char* const other = v.first_other_segment.c_str();
  if (v.maps == 0 || v.segments != 0)
    std::printf("  cudaMallocs      %zu, %s\n", v.segments, *other == 0 ? "equal sizes" : other);
  if (v.maps != 0)
    std::printf("  pages mapped     %s, %s\n", replay::counted(v.maps, "time").c_str(),
                *other == 0 ? "equal pages" : other);
  std::printf("  peak reserved    %zu on the GPU, %zu replayed\n", v.peak_recorded, v.peak_here);
  if (!v.agrees())
    std::printf("  rules tried      PyTorch 2.6 and 2.14; shown are those of %s, which agree longest\n",
                v.rules);
}

void print_json(const std::string& file, const verification& v, const tessera::observe::snapshot& source) {
  std::printf("{\"snapshot\": \"%s\", \"device\": %zu, \"agrees\": ", replay::json_text(file).c_str(),
              v.device);
  if (!v.has_compared()) {
    std::printf("null, \"reason\": \"%s\"}", no_allocation);
    return;
  }
  std::printf(
      "%s, \"allocations\": %zu, \"same_address\": %zu, \"segments\": %zu, \"maps\": %zu, "
      "\"segments_equal\": %s, \"peak_recorded\": %zu, \"peak_here\": %zu, \"rules\": \"%s\", "
      "\"rules_tried\": [\"2.6\"%s], \"first_difference\": ",
      v.agrees() ? "true" : "false", v.allocations, v.same_address, v.segments, v.maps,
      v.first_other_segment.empty() ? "true" : "false", v.peak_recorded, v.peak_here, v.rules,
      v.tried_2_14 ? ", \"2.14\"" : "");
  if (v.same_address == v.allocations) {
    std::printf("null}");
    return;
  }
  const auto& e = source.trace_of(v.device)[v.other_entry];
  std::printf("{\"allocation\": %zu, \"entry\": %zu, \"bytes\": %zu, \"expected\": %" PRIu64
              ", \"given\": %" PRIu64 ", \"line\": \"%s\"}}",
              v.first_other_address, v.other_entry, e.size, v.other_expected, v.other_given,
              replay::json_text(replay::call_site(source.stacks, e.stack)).c_str());
}

/// Reads a snapshot file.
replay::read_result<tessera::observe::snapshot> read(const std::string& file) {
  const auto bytes = replay::read_file(file, [&](std::string_view beginning) {
    if (replay::is_pickle(beginning)) return std::optional<input_error>();
    auto packed = replay::check_not_compressed(beginning, file);
    return packed ? packed : input_error{file, "is no pickle; verify takes snapshots of PyTorch"};
  });
  if (const auto* error = std::get_if<input_error>(&bytes)) return *error;
  return replay::read_snapshot(std::get<std::string>(bytes), file);
}

/// The devices with segments or a history.
std::vector<std::size_t> devices_of(const tessera::observe::snapshot& source) {
  std::set<std::size_t> devices;
  for (const auto& segment : source.segments) devices.insert(static_cast<std::size_t>(segment.device));
  for (std::size_t i = 0; i < source.traces.size(); ++i) {
    if (!source.traces[i].empty()) devices.insert(i);
  }
  return {devices.begin(), devices.end()};
}

}  // namespace

replay::read_result<verification> replay::verify_device(const tessera::observe::snapshot& source,
                                                        std::size_t device) {
  return verifier(source, device).run();
}

int replay::commands::verify(const arguments& args) {
  json_list list(args.json);
  int code = done;
  for (const std::string& file : args.files) {
    const auto refuse = [&](const std::string& wrong) {
      code = print_error(wrong);
      list.add_error("snapshot", title_of(file), wrong);
    };
    const auto snapshot = read(file);
    if (const auto* error = std::get_if<input_error>(&snapshot)) {
      refuse(error->text());
      continue;
    }
    const auto& source = std::get<tessera::observe::snapshot>(snapshot);
    const std::vector<std::size_t> there = devices_of(source);
    const auto devices = select_devices(file, there, args.device);
    if (const auto* error = std::get_if<input_error>(&devices)) {
      refuse(error->text());
      continue;
    }
    if (there.empty()) refuse(file + ": holds neither segments nor a history");
    for (const std::size_t device : std::get<std::vector<std::size_t>>(devices)) {
      const auto outcome = replay::verify_device(source, device);
      if (const auto* error = std::get_if<input_error>(&outcome)) {
        refuse(error->text());
        continue;
      }
      const auto& result = std::get<verification>(outcome);
      if (!result.agrees()) code = std::max<int>(code, differs);
      list.next();
      args.json ? print_json(title_of(file), result, source) : print(file, result, source);
    }
  }
  return code;
}
