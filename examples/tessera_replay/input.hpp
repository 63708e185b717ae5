// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>
#include <variant>

#include <tessera/provider/simulated_device.hpp>
#include <tessera/trace/event.hpp>
#include <tessera/trace/file.hpp>
#include <tessera/trace/lifetimes.hpp>
#include <tessera/trace/program.hpp>
#include <tessera/trace/snapshot_recording.hpp>
#include <tessera/trace/text.hpp>

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
/// The same of the only file, with the recipe and its settings.
[[nodiscard]] inline std::string title_of(const arguments& said) {
  return title_of(said.files[0]) + ", " + said.recipe + (said.conf.empty() ? "" : ", --conf " + said.conf);
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

/// A file in any of the formats that are understood, told by its beginning; one that allocates nothing is an error.
[[nodiscard]] inline read_result<tessera::trace::recording> read_recording(const std::string& path) {
  using namespace tessera::trace;
  auto text = read_file(path, [&](std::string_view beginning) {
    if (is_pickle(beginning)) return std::optional<input_error>();
    auto packed = no_packed_file(beginning, path);
    return packed ? packed : no_text_trace(beginning, path);
  });
  if (auto* error = std::get_if<input_error>(&text)) return std::move(*error);
  const std::string& bytes = std::get<std::string>(text);
  auto read = is_pickle(bytes) ? read_snapshot_recording(bytes, path) : read_text_trace(bytes, path);
  const auto allocates = [](const event& e) { return e.what == event::kind::allocate; };
  if (const auto* made = std::get_if<recording>(&read);
      made != nullptr && std::none_of(made->events.begin(), made->events.end(), allocates))
    return input_error{path, "nothing is allocated"};
  return read;
}

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
/// The same with the only file.
template <typename F>
int with_trace(const arguments& said, F f) {
  const auto read = read_recording(said.files[0]);
  if (const auto* const error = std::get_if<tessera::trace::input_error>(&read))
    return complain(error->text());
  return with_recording(said, std::get<tessera::trace::recording>(read), f);
}

}  // namespace replay
