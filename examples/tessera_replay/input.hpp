// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdio>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>

#include <unistd.h>

#include <tessera/config/pytorch.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/recipe/passthrough.hpp>
#include <tessera/recipe/power_of_two.hpp>
#include <tessera/recipe/pytorch.hpp>
#include <tessera/recipe/recipe.hpp>
#include <tessera/recipe/stitched.hpp>
#include <tessera/recipe/with.hpp>
#include <tessera/trace/event.hpp>
#include <tessera/trace/file.hpp>
#include <tessera/trace/lifetimes.hpp>
#include <tessera/trace/program.hpp>
#include <tessera/trace/snapshot_recording.hpp>

#include "commands.hpp"

namespace replay {

using tessera::trace::read_result;

/// The file's name without folders and ending.
[[nodiscard]] inline std::string title_of(std::string_view path) {
  path.remove_prefix(path.find_last_of('/') + 1);
  return std::string(path.substr(0, path.find_last_of('.')));
}

/// A file in any of the formats that are understood, told by its beginning.
[[nodiscard]] inline read_result<tessera::trace::recording> read_recording(const std::string& path) {
  auto text = tessera::trace::read_file(path);
  if (auto* error = std::get_if<tessera::trace::input_error>(&text)) return std::move(*error);
  const std::string& bytes = std::get<std::string>(text);
  const bool pickled = bytes.starts_with('\x80');
  return pickled ? tessera::trace::read_snapshot_recording(bytes, path)
                 : tessera::trace::read_text_trace(bytes, path);
}

/// The settings in a configuration string, or what is wrong with it.
[[nodiscard]] inline std::variant<tessera::config::pytorch_settings, std::string> read_conf(
    const std::string& conf) {
  const auto parsed = tessera::config::parse<tessera::config::pytorch>(conf);
  if (const auto* error = std::get_if<tessera::config::setting_error>(&parsed)) {
    return "--conf, character " + std::to_string(error->at) + ": " + std::string(error->key) +
           (error->value.empty() ? "" : ":" + std::string(error->value)) + ": " + std::string(error->rule);
  }
  return std::get<tessera::config::pytorch_settings>(parsed);
}

/// Whether a recipe takes the settings of a configuration string.
template <typename Recipe>
inline constexpr bool takes_settings =
    requires(const tessera::config::pytorch_settings& settings) { Recipe::configured(settings); };

/// A recipe's policies under the settings, so far as it takes any.
template <typename Recipe>
[[nodiscard]] tessera::policies<Recipe> policies_for(const tessera::config::pytorch_settings& settings,
                                                     std::size_t capacity) {
  if constexpr (takes_settings<Recipe>) {
    auto chosen = Recipe::configured(settings);
    // PyTorch collects only under a memory fraction, so a threshold comes with the fraction 1.
    if (settings.garbage_collection_threshold != tessera::fraction{}) chosen.growth.most = capacity;
    return chosen;
  } else {
    return {};
  }
}

/// Calls f.operator()<Recipe>(name) for each recipe.
template <typename F>
void for_each_recipe(F f) {
  f.template operator()<tessera::pytorch<>>("pytorch");
  f.template operator()<tessera::pytorch_expandable>("pytorch_expandable");
  f.template operator()<tessera::stitched>("stitched");
  f.template operator()<tessera::with<tessera::stitched, tessera::grow_by_stitching<std::size_t{32}>>>(
      "stitched_calmly");
  f.template operator()<tessera::power_of_two>("power_of_two");
  f.template operator()<tessera::passthrough>("passthrough");
}

[[nodiscard]] inline tessera::simulated_device device_of(std::size_t capacity) {
  return tessera::simulated_device{tessera::simulated_device::options{.capacity = capacity}};
}

/// `text` as it may stand between the quotes of a JSON string.
[[nodiscard]] inline std::string json_text(std::string_view text) {
  std::string safe;
  for (char c : text) {
    if (c == '"' || c == '\\') safe += '\\';
    safe += c >= ' ' ? c : ' ';
  }
  return safe;
}

/// Says on a terminal what is being done, over what was said before; nothing where standard error is a file.
inline void progress(const std::string& text) {
  if (isatty(STDERR_FILENO) != 0) std::fprintf(stderr, "\r\x1b[K%s", text.c_str());
}

inline int complain(const std::string& text) {
  std::fprintf(stderr, "tessera-replay: %s\n", text.c_str());
  return wrong_input;
}

/// Reads what a command on one trace needs, says what is wrong with it, or calls
/// f.operator()<Recipe>(name, program, settings) with the recipe asked for and returns its exit code.
template <typename F>
int with_trace(const arguments& said, F f) {
  const auto read = read_conf(said.conf);
  if (const auto* rule = std::get_if<std::string>(&read)) return complain(*rule);
  auto settings = std::get<tessera::config::pytorch_settings>(read);
  std::string recipe = said.recipe;
  if (recipe == "pytorch" && settings.expandable_segments) recipe = "pytorch_expandable";
  if (recipe == "pytorch_expandable") settings.expandable_segments = true;
  int code = -1;
  std::string names;
  for_each_recipe([&]<typename Recipe>(std::string_view name) {
    names.append(names.empty() ? "" : ", ").append(name);
    if (name != recipe) return;
    if (!takes_settings<Recipe> && !said.conf.empty()) {
      code = complain("--conf: recipe " + recipe + " takes no settings");
      return;
    }
    const auto recording = read_recording(said.files[0]);
    if (const auto* wrong = std::get_if<tessera::trace::input_error>(&recording)) {
      code = complain(wrong->text());
      return;
    }
    const tessera::trace::program program(std::get<tessera::trace::recording>(recording));
    code = f.template operator()<Recipe>(name, program, settings);
  });
  return code >= 0 ? code : complain("--recipe " + said.recipe + ": no such recipe; there are " + names);
}

}  // namespace replay
