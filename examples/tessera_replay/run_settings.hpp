// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include <tessera/core/bytes.hpp>
#include <tessera/observe/snapshot.hpp>

#include "commands.hpp"

namespace replay {

/// What a recording says about the run that it was made in.
struct recorded_facts {
  std::string recipe;  ///< its name on the command line; empty if the file does not say
  std::string conf;
  std::size_t capacity = 0;  ///< bytes reserved and free when a request first failed; 0 if none failed
  /// The memory fraction of the run, in bytes: at least `min_limit`, and less than `limit_end`. 0 if none is known.
  std::size_t min_limit = 0, limit_end = 0;
  /// Numbers of the request that failed although the device had room.
  std::size_t limited_request = 0, limited_free = 0;
};

/// Finds what a snapshot says about the run of one device. `recipe` is the name of the recipe that decides as recorded.
[[nodiscard]] recorded_facts find_facts(const tessera::observe::snapshot& source, std::size_t device,
                                        const std::string& recipe);

/// Where a setting is from.
enum class setting_source : unsigned char { by_default, given, recorded, deduced };
[[nodiscard]] const char* text_of(setting_source from) noexcept;

/// The recipe, its settings and the device of a replay, and where each is from. Each verb uses these.
struct run_settings {
  std::string recipe = "pytorch";
  std::string conf;
  std::size_t capacity = tessera::operator""_GiB(80);  ///< bytes
  std::optional<double> memory_fraction;               ///< the argument of set_per_process_memory_fraction
  std::size_t limit = tessera::unlimited;              ///< bytes that may be reserved; deduced
  std::size_t limit_end = 0;  ///< the recorded limit was at least `limit`, and less than this
  setting_source recipe_from = setting_source::by_default;
  setting_source conf_from = setting_source::by_default;
  setting_source capacity_from = setting_source::by_default;

  /// The settings of another recipe on the same device.
  [[nodiscard]] run_settings with(const std::string& name, const std::string& text) const {
    run_settings made = *this;
    made.recipe = name;
    made.conf = text;
    return made;
  }
  [[nodiscard]] bool knows_capacity() const noexcept { return capacity_from != setting_source::by_default; }
};

/// Decides with what a recording is replayed: what the command line says, else what the recording says, else a default.
///
///   * --recipe without --conf is that recipe without settings. --conf without --recipe has the recorded recipe.
///   * --capacity or --memory-fraction takes the place of a deduced limit.
[[nodiscard]] run_settings settle(const arguments& args, const recorded_facts& known);

/// Names the settings and where they are from, as "recipe pytorch (default), ...".
[[nodiscard]] std::string settings_text(const run_settings& used);
/// Says only the recipe and its settings.
[[nodiscard]] std::string recipe_text(const run_settings& used);
/// Says only what limits memory: the capacity, and the memory fraction.
[[nodiscard]] std::string capacity_text(const run_settings& used);
/// The settings as the member "settings" of a JSON object.
[[nodiscard]] std::string settings_json(const run_settings& used);

}  // namespace replay
