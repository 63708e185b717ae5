// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdlib>
#include <variant>

#include <tessera/config/dialect.hpp>
#include <tessera/config/words.hpp>

namespace tessera::config {

/// Reads the settings in an environment variable; where it is not set, all are at their defaults.
///   Returns:  the settings, or the first error, whose words point into the variable
template <typename Dialect>
[[nodiscard]] std::variant<typename Dialect::settings, setting_error> read_environment(
    const char* variable) noexcept {
  const char* const text = std::getenv(variable);
  return parse<Dialect>(text != nullptr ? text : "");
}

/// The same for the variables that the dialect's system reads: the first one that is set counts, and where each key is a
/// variable, all of them.
///
///     const auto read = tessera::config::read_environment<tessera::config::pytorch>();
///     if (const auto* said = std::get_if<tessera::config::pytorch_settings>(&read))
///       std::puts(said->expandable_segments ? "ranges that grow" : "segments");
template <typename Dialect>
[[nodiscard]] std::variant<typename Dialect::settings, setting_error> read_environment() noexcept {
  for (const char* variable : Dialect::variables) {
    if (std::getenv(variable) != nullptr) return read_environment<Dialect>(variable);
  }
  dialect_reader<Dialect> reader("");
  if constexpr (Dialect::variables.empty()) {
    for (std::size_t i = 0; i < Dialect::keys.size(); ++i) {
      const char* const text = std::getenv(Dialect::keys[i].name.data());
      if (text != nullptr) reader.read_value(i, text);
    }
  }
  return reader.end();
}

}  // namespace tessera::config
