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
#include "recorded_conf.hpp"
#include "snapshot_recording.hpp"

namespace {

using namespace tessera::trace;

std::string numbers_in(const std::vector<std::size_t>& numbers) {
  std::string text;
  for (const std::size_t n : numbers) text += (text.empty() ? "" : ", ") + std::to_string(n);
  return text;
}

/// Names a trace. One without allocations is an error.
replay::read_result<replay::run_trace> named(replay::read_result<replay::indexed_recording> read,
                                             const std::string& path, const std::string& name) {
  if (auto* const error = std::get_if<input_error>(&read)) return std::move(*error);
  auto& made = std::get<replay::indexed_recording>(read);
  const auto allocates = [](const event& e) { return e.what == event::kind::allocate; };
  if (std::none_of(made.made.events.begin(), made.made.events.end(), allocates))
    return input_error{path, "nothing is allocated"};
  made.made.name = name;
  replay::run_trace found;
  found.made = std::move(made.made);
  found.events_at_start = made.events_at_start;
  found.entries = std::move(made.entries);
  found.addresses = std::move(made.addresses);
  return found;
}

/// Finds the recipe on the command line that a snapshot was captured from. Empty if there is none.
std::string recipe_named(const std::string& recorded) {
  const replay::recipe_list known;
  for (const std::string_view name : known.names()) {
    const auto made = known.choose(std::string(name), "", {});
    if (std::get<replay::any_recipe>(made).type_name() == recorded) return std::string(name);
  }
  return {};
}

/// Adds what a snapshot says about the run of one device.
std::optional<input_error> add_facts(replay::run_trace& to, const tessera::observe::snapshot& source,
                                     std::size_t device) {
  if (auto refused = replay::check_allocator(source, device)) return refused;
  to.device = device;
  if (!source.trace_of(device).empty()) to.verified = replay::verify_device(source, device);
  const std::string& from = source.configured.recipe;
  std::string recipe = "pytorch";
  if (!from.empty() && !from.starts_with("tessera::recipe::pytorch")) recipe = recipe_named(from);
  if (recipe == "pytorch" && to.verified) {
    const auto* const made = std::get_if<replay::verification>(&*to.verified);
    if (made != nullptr && made->has_compared() && made->rules == std::string_view("2.14"))
      recipe = "pytorch_2_14";
  }
  // A state without a history or settings does not say which rules made it.
  if (!to.verified && source.configured == tessera::observe::snapshot::settings{}) recipe.clear();
  to.known = replay::find_facts(source, device, recipe);
  return {};
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
    auto text_trace = read_text_trace(bytes, path);
    if (auto* error = std::get_if<input_error>(&text_trace)) return std::move(*error);
    indexed_recording made;
    made.made = std::move(std::get<recording>(text_trace));
    found.each.push_back(named(std::move(made), path, title_of(path)));
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
  for (const std::size_t one : std::get<std::vector<std::size_t>>(selected)) {
    const std::string of_device = there.size() > 1 ? ", device " + std::to_string(one) : "";
    const std::string where = there.size() > 1 ? path + ": device " + std::to_string(one) : path;
    read_result<run_trace> made =
        named(index_recording(*found.source, one), where, title_of(path) + of_device);
    if (auto* const trace = std::get_if<run_trace>(&made)) {
      if (auto refused = add_facts(*trace, *found.source, one)) made = std::move(*refused);
    }
    found.each.push_back(std::move(made));
  }
  return found;
}
