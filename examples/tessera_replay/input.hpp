// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <tessera/observe/snapshot.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/trace/csv.hpp>
#include <tessera/trace/recording.hpp>
#include "capacity.hpp"
#include "commands.hpp"
#include "files.hpp"
#include "numbers.hpp"
#include "recipes.hpp"
#include "run_settings.hpp"
#include "terminal.hpp"
#include "verification.hpp"

namespace replay {

/// The file name without folders and extension.
[[nodiscard]] inline std::string title_of(std::string_view path) {
  path.remove_prefix(path.find_last_of('/') + 1);
  return std::string(path.substr(0, path.find_last_of('.')));
}
/// The memory fraction after `before`; empty if none was set.
[[nodiscard]] inline std::string fraction_text(const run_settings& used, const std::string& before) {
  if (!used.memory_fraction) return {};
  return before + real_text(*used.memory_fraction);
}
/// The trace, recipe and settings, as a title.
[[nodiscard]] inline std::string title_of(const run_settings& used, const std::string& trace) {
  return trace + ", " + used.recipe + (used.conf.empty() ? "" : ", --conf " + used.conf) +
         fraction_text(used, ", --memory-fraction ");
}

[[nodiscard]] inline bool is_pickle(std::string_view bytes) { return bytes.starts_with('\x80'); }

/// Rejects compressed files, by their first bytes.
[[nodiscard]] inline std::optional<tessera::trace::input_error> check_not_compressed(
    std::string_view beginning, const std::string& path) {
  using tessera::trace::input_error;
  if (beginning.starts_with("PK\x03\x04"))
    return input_error{path,
                       "is a zip archive, as torch.save writes; memory snapshots are written by "
                       "torch.cuda.memory._dump_snapshot"};
  if (beginning.starts_with("\x1f\x8b"))
    return input_error{path, "is compressed by gzip; decompress it first"};
  return {};
}

/// A trace, and what its file says about the run.
struct run_trace {
  tessera::trace::recording made;  ///< with the name to print
  recorded_facts known{};
  std::size_t device = 0;
  // Of a trace from a snapshot:
  std::size_t events_at_start = 0;     ///< the first events allocate what was live when the history begins
  std::vector<std::size_t> entries{};  ///< the entry of each event after those
  std::vector<std::uint64_t> addresses{};  ///< of the allocations, by id; 0 for requests that failed
  std::optional<read_result<verification>> verified{};
};

/// The traces in a file: one, or one for each selected device of a snapshot.
struct traces {
  std::optional<tessera::observe::snapshot> source;
  std::vector<read_result<run_trace>> each;
};

/// Reads a trace file of any supported format. A file without allocations is an error, and a snapshot of another
/// allocator than PyTorch's or tessera's.
[[nodiscard]] read_result<traces> read_traces(const std::string& path, std::optional<std::size_t> device);
/// Selects devices of a snapshot.
[[nodiscard]] read_result<std::vector<std::size_t>> select_devices(const std::string& path,
                                                                   const std::vector<std::size_t>& there,
                                                                   std::optional<std::size_t> device);

/// Whether two paths refer to the same file.
[[nodiscard]] inline bool is_same_file(const std::string& a, const std::string& b) {
  std::error_code not_there;
  return std::filesystem::equivalent(a, b, not_there);
}

/// Says that a recipe cannot sleep, if the program contains sleeps.
inline void print_skipped_sleeps(const std::string& name, const any_recipe& recipe,
                                 const tessera::trace::program& program) {
  if (recipe.has_ranges() || program.sleeps() == 0) return;
  print_message(name + " cannot sleep; " +
                counted(program.sleeps(), "sleep or wake is", "sleeps and wakes are") + " skipped");
}

/// Makes the selected recipe under its settings and limits.
[[nodiscard]] inline recipe_or_error choose_recipe(const run_settings& used) {
  return used.known->choose(used.recipe, used.conf, {used.memory_fraction, used.limit});
}

/// The exit code of a verb for one trace, or the text of an error.
using verb_result = std::variant<int, std::string>;

/// Calls f(program, recipe) with the selected recipe.
template <typename F>
[[nodiscard]] verb_result with_recipe(const run_settings& used, const tessera::trace::recording& recording,
                                      F f) {
  const recipe_or_error chosen = choose_recipe(used);
  if (const auto* const wrong = std::get_if<std::string>(&chosen)) return *wrong;
  const auto& recipe = std::get<any_recipe>(chosen);
  const tessera::trace::program program(recording);
  print_skipped_sleeps(used.recipe, recipe, program);
  return f(program, recipe);
}
/// Calls f(trace, settings, all) for each trace of the only file, and prints errors; one that is that of the trace before
/// is printed once. Several JSON results become an array.
///   Returns:  the largest exit code
template <typename F>
int with_each_trace(const arguments& args, F f) {
  const auto read = read_traces(args.files[0], args.device);
  if (const auto* const error = std::get_if<tessera::trace::input_error>(&read))
    return print_error(error->text());
  const auto& all = std::get<traces>(read);
  json_list list(args.json && all.each.size() > 1);
  int code = done;
  std::string last_error;
  for (const auto& one : all.each) {
    list.next();
    const auto* const error = std::get_if<tessera::trace::input_error>(&one);
    const auto* const trace = std::get_if<run_trace>(&one);
    const verb_result found = error != nullptr ? verb_result(error->text())
                                               : verb_result(f(*trace, settle(args, trace->known), all));
    if (const int* const its_code = std::get_if<int>(&found)) {
      code = (std::max)(code, *its_code);
      continue;
    }
    const std::string& wrong = std::get<std::string>(found);
    list.end_with_error("trace", trace != nullptr ? trace->made.name : title_of(args.files[0]), wrong);
    if (wrong != last_error) code = print_error(wrong);
    last_error = wrong;
  }
  return code;
}

/// The file to write for one of the traces of a file: --out as given, with ".deviceN" before the extension if there are
/// several.
[[nodiscard]] inline std::string out_path(const std::string& out, const traces& all, const run_trace& one) {
  if (all.each.size() < 2) return out;
  const std::size_t point = out.find_last_of('.');
  return out.substr(0, point) + ".device" + std::to_string(one.device) + out.substr(point);
}

}  // namespace replay
