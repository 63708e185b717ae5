// SPDX-License-Identifier: Apache-2.0
#include "input.hpp"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <tessera/observe/snapshot.hpp>
#include <tessera/trace/csv.hpp>
#include <tessera/trace/recording.hpp>
#include "lifetimes.hpp"
#include "read_snapshot.hpp"
#include "snapshot_recording.hpp"

namespace {

using namespace tessera::trace;

std::string numbers_in(const std::vector<std::size_t>& numbers) {
  std::string text;
  for (const std::size_t n : numbers) text += (text.empty() ? "" : ", ") + std::to_string(n);
  return text;
}

/// Names a recording. One without allocations is an error.
replay::read_result<recording> named(replay::read_result<recording> read, const std::string& path,
                                     const std::string& name) {
  auto* const made = std::get_if<recording>(&read);
  if (made == nullptr) return read;
  const auto allocates = [](const event& e) { return e.what == event::kind::allocate; };
  if (std::none_of(made->events.begin(), made->events.end(), allocates))
    return input_error{path, "nothing is allocated"};
  made->name = name;
  return read;
}

}  // namespace

replay::read_result<std::vector<std::size_t>> replay::select_devices(const std::string& path,
                                                                     const std::vector<std::size_t>& there,
                                                                     std::optional<std::size_t> device) {
  if (!device) return there;
  if (std::find(there.begin(), there.end(), *device) != there.end()) return std::vector<std::size_t>{*device};
  return input_error{path, "has no device " + std::to_string(*device) + "; it has " +
                               (there.empty() ? "none" : numbers_in(there))};
}

replay::read_result<replay::traces> replay::read_traces(const std::string& path,
                                                        std::optional<std::size_t> device) {
  auto text = read_file(path, [&](std::string_view beginning) {
    if (is_pickle(beginning)) return std::optional<input_error>();
    auto packed = check_not_compressed(beginning, path);
    return packed ? packed : check_text_trace(beginning, path);
  });
  if (auto* error = std::get_if<input_error>(&text)) return std::move(*error);
  const std::string& bytes = std::get<std::string>(text);
  traces found;
  if (!is_pickle(bytes)) {
    if (device) return input_error{path, "has no devices; --device is for snapshots"};
    found.each.push_back(named(read_text_trace(bytes, path), path, title_of(path)));
    if (auto* error = std::get_if<input_error>(&found.each[0])) return std::move(*error);
    return found;
  }
  auto read = read_snapshot(bytes, path);
  if (auto* error = std::get_if<input_error>(&read)) return std::move(*error);
  found.source = std::move(std::get<tessera::observe::snapshot>(read));
  const std::vector<std::size_t> there = recorded_devices(*found.source);
  if (there.empty()) return input_error{path, "nothing is allocated"};
  auto selected = select_devices(path, there, device);
  if (auto* error = std::get_if<input_error>(&selected)) return std::move(*error);
  found.devices = std::move(std::get<std::vector<std::size_t>>(selected));
  for (const std::size_t one : found.devices) {
    const std::string of_device = there.size() > 1 ? ", device " + std::to_string(one) : "";
    const std::string where = there.size() > 1 ? path + ": device " + std::to_string(one) : path;
    found.each.push_back(named(recording_of(*found.source, one), where, title_of(path) + of_device));
  }
  return found;
}

replay::read_result<replay::traces> replay::read_one_trace(const arguments& args) {
  const std::string& path = args.files[0];
  auto read = read_traces(path, args.device);
  if (auto* error = std::get_if<input_error>(&read)) return std::move(*error);
  auto& found = std::get<traces>(read);
  if (found.each.size() > 1)
    return input_error{path, "has the devices " + numbers_in(found.devices) + "; select one with --device"};
  if (auto* error = std::get_if<input_error>(&found.each[0])) return std::move(*error);
  return std::move(found);
}

replay::read_result<recording> replay::read_only_trace(const arguments& args) {
  auto read = read_one_trace(args);
  if (auto* error = std::get_if<input_error>(&read)) return std::move(*error);
  return std::move(std::get<traces>(read).each[0]);
}
