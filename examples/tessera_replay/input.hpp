// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <iterator>
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
#include "recipes.hpp"
#include "terminal.hpp"

namespace replay {

/// The file name without folders and extension.
[[nodiscard]] inline std::string title_of(std::string_view path) {
  path.remove_prefix(path.find_last_of('/') + 1);
  return std::string(path.substr(0, path.find_last_of('.')));
}
/// The memory fraction after `before`; empty if none was set.
[[nodiscard]] inline std::string fraction_text(const arguments& args, const std::string& before) {
  if (!args.memory_fraction) return {};
  char number[32];
  return before + std::string(number, std::to_chars(number, std::end(number), *args.memory_fraction).ptr);
}
/// The trace, recipe and settings, as a title.
[[nodiscard]] inline std::string title_of(const arguments& args, const tessera::trace::program& program) {
  return program.name() + ", " + args.recipe + (args.conf.empty() ? "" : ", --conf " + args.conf) +
         fraction_text(args, ", --memory-fraction ");
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

/// The traces in a file: one, or one for each selected device of a snapshot.
struct traces {
  std::optional<tessera::observe::snapshot> source;
  std::vector<std::size_t> devices;                          // of a snapshot; one for each trace
  std::vector<read_result<tessera::trace::recording>> each;  // with the name to print
};

/// Reads a trace file of any supported format. A file without allocations is an error.
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
template <typename Recipe>
void print_skipped_sleeps(const std::string& recipe, const tessera::trace::program& program) {
  if (Recipe::growth::backend::has_ranges || program.sleeps() == 0) return;
  progress_line::clear();
  std::fprintf(stderr, "tessera-replay: %s cannot sleep; %zu sleeps and wakes are skipped\n", recipe.c_str(),
               program.sleeps());
}

/// Calls f.operator()<Recipe>(program, policies) with the selected recipe.
///   Returns:  the exit code of `f`, or that of an error
template <typename F>
int with_recording(const arguments& args, const tessera::trace::recording& recording, F f) {
  int code = done;
  const std::string wrong =
      choose_recipe(args.recipe, args.conf, args.memory_fraction,
                    [&]<typename Recipe>(const tessera::recipe::policies<Recipe>& chosen) {
                      const tessera::trace::program program(recording);
                      print_skipped_sleeps<Recipe>(args.recipe, program);
                      code = f.template operator()<Recipe>(program, chosen);
                    });
  return wrong.empty() ? code : print_error(wrong);
}
/// Calls f(recording) for each trace of the only file, and prints errors of the others. Several JSON results
/// become an array.
///   Returns:  the largest exit code
template <typename F>
int with_each_recording(const arguments& args, F f) {
  const auto read = read_traces(args.files[0], args.device);
  if (const auto* const error = std::get_if<tessera::trace::input_error>(&read))
    return print_error(error->text());
  const auto& each = std::get<traces>(read).each;
  json_list list(args.json && each.size() > 1);
  int code = done;
  for (const auto& one : each) {
    if (const auto* const error = std::get_if<tessera::trace::input_error>(&one)) {
      code = (std::max)(code, print_error(error->text()));
      list.add_error("trace", title_of(args.files[0]), error->text());
      continue;
    }
    list.next();
    code = (std::max)(code, f(std::get<tessera::trace::recording>(one)));
  }
  return code;
}
/// Calls f.operator()<Recipe>(program, policies) for each trace of the only file.
template <typename F>
int with_trace(const arguments& args, F f) {
  return with_each_recording(
      args, [&](const tessera::trace::recording& recording) { return with_recording(args, recording, f); });
}

/// Reads the only trace of a file, and the snapshot that it comes from. A snapshot of several devices needs --device.
///   Returns:  traces with one recording
[[nodiscard]] read_result<traces> read_one_trace(const arguments& args);
/// Reads the only trace of a file. A snapshot of several devices needs --device.
[[nodiscard]] read_result<tessera::trace::recording> read_only_trace(const arguments& args);

}  // namespace replay
