// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <charconv>
#include <cstddef>
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

#include <tessera/observe/output.hpp>
#include <tessera/observe/snapshot.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/replay/read.hpp>
#include <tessera/replay/recording.hpp>

#include "capacity.hpp"
#include "commands.hpp"
#include "recipes.hpp"
#include "terminal.hpp"

namespace replay {

using tessera::trace::json_text;
using tessera::trace::read_result;

/// The file's name without folders and ending.
[[nodiscard]] inline std::string title_of(std::string_view path) {
  path.remove_prefix(path.find_last_of('/') + 1);
  return std::string(path.substr(0, path.find_last_of('.')));
}
/// The memory fraction behind these words; nothing where none was set.
[[nodiscard]] inline std::string fraction_text(const arguments& said, const std::string& before) {
  if (!said.memory_fraction) return {};
  char number[32];
  return before + std::string(number, std::to_chars(number, std::end(number), *said.memory_fraction).ptr);
}
/// A trace's name, with the recipe and its settings.
[[nodiscard]] inline std::string title_of(const arguments& said, const tessera::trace::program& program) {
  return program.name() + ", " + said.recipe + (said.conf.empty() ? "" : ", --conf " + said.conf) +
         fraction_text(said, ", --memory-fraction ");
}

[[nodiscard]] inline bool is_pickle(std::string_view bytes) { return bytes.starts_with('\x80'); }

/// What is wrong with a file that is packed, by its beginning; nothing where it is not.
[[nodiscard]] inline std::optional<tessera::trace::input_error> no_packed_file(std::string_view beginning,
                                                                               const std::string& path) {
  using tessera::trace::input_error;
  if (beginning.starts_with("PK\x03\x04"))
    return input_error{path,
                       "is a zip archive, as torch.save writes; a memory snapshot is what "
                       "torch.cuda.memory._dump_snapshot writes"};
  if (beginning.starts_with("\x1f\x8b")) return input_error{path, "is packed by gzip; unpack it first"};
  return {};
}

/// What a file holds: one trace, or of a snapshot, one of each device that is asked for.
struct traces {
  std::optional<tessera::trace::snapshot> source;
  std::vector<std::size_t> devices;                          // of a snapshot, for each of these
  std::vector<read_result<tessera::trace::recording>> each;  // under the name that is to be shown
};

/// A file in any of the formats that are understood, told by its beginning; one that allocates nothing is an error.
[[nodiscard]] read_result<traces> read_traces(const std::string& path, std::optional<std::size_t> device);
/// The devices of a snapshot that are asked for; or what is wrong.
[[nodiscard]] read_result<std::vector<std::size_t>> chosen_devices(const std::string& path,
                                                                   const std::vector<std::size_t>& there,
                                                                   std::optional<std::size_t> device);

/// Whether two paths lead to one file.
[[nodiscard]] inline bool is_same_file(const std::string& a, const std::string& b) {
  std::error_code not_there;
  return std::filesystem::equivalent(a, b, not_there);
}

/// Calls f.operator()<Recipe>(program, policies) with a recording and the recipe asked for, and returns its exit code; or
/// says what is wrong.
template <typename F>
int with_recording(const arguments& said, const tessera::trace::recording& recording, F f) {
  int code = done;
  const std::string wrong = choose_recipe(said.recipe, said.conf, said.memory_fraction,
                                          [&]<typename Recipe>(const tessera::policies<Recipe>& chosen) {
                                            const tessera::trace::program program(recording);
                                            code = f.template operator()<Recipe>(program, chosen);
                                          });
  return wrong.empty() ? code : complain(wrong);
}
/// Calls f(recording) for each trace of the only file, says what is wrong with others, and returns the worst exit code.
/// What f prints as JSON becomes an array where there are several.
template <typename F>
int with_each_recording(const arguments& said, F f) {
  const auto read = read_traces(said.files[0], said.device);
  if (const auto* const error = std::get_if<tessera::trace::input_error>(&read))
    return complain(error->text());
  const auto& each = std::get<traces>(read).each;
  json_list list(said.json && each.size() > 1);
  int code = done;
  for (const auto& one : each) {
    if (const auto* const error = std::get_if<tessera::trace::input_error>(&one)) {
      code = (std::max)(code, complain(error->text()));
      list.add_error("trace", title_of(said.files[0]), error->text());
      continue;
    }
    list.next();
    code = (std::max)(code, f(std::get<tessera::trace::recording>(one)));
  }
  return code;
}
/// The same with the recipe asked for, as with_recording.
template <typename F>
int with_trace(const arguments& said, F f) {
  return with_each_recording(
      said, [&](const tessera::trace::recording& recording) { return with_recording(said, recording, f); });
}

/// The only trace of a file; of a snapshot with several, one must be named, since one file is written.
[[nodiscard]] read_result<tessera::trace::recording> read_only_trace(const arguments& said);

}  // namespace replay
