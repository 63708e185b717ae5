// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdlib>
#include <variant>

#include <tessera/config/grammar.hpp>
#include <tessera/config/parse.hpp>

namespace tessera::config {

/// Parses the settings in an environment variable. Returns the defaults if the variable is not set.
///   Returns:  the settings, or the first error, whose texts point into the variable
template <typename Grammar>
[[nodiscard]] std::variant<typename Grammar::settings, setting_error> read_environment(
    const char* variable) noexcept {
  const char* const text = std::getenv(variable);
  return parse<Grammar>(text != nullptr ? text : "");
}

/// Parses the settings in the variables that the system itself reads. That is the first variable that is set.
/// For Paddle, it is one variable for each key.
///
///     const auto parsed = tessera::config::read_environment<tessera::config::pytorch>();
///     if (const auto* settings = std::get_if<tessera::config::pytorch_settings>(&parsed))
///       std::puts(settings->expandable_segments ? "expandable segments" : "segments");
template <typename Grammar>
[[nodiscard]] std::variant<typename Grammar::settings, setting_error> read_environment() noexcept {
  for (const char* variable : Grammar::variables) {
    if (std::getenv(variable) != nullptr) return read_environment<Grammar>(variable);
  }
  detail::grammar_reader<Grammar> reader("");
  if constexpr (Grammar::variables.empty()) {
    for (std::size_t i = 0; i < Grammar::keys.size(); ++i) {
      const char* const text = std::getenv(Grammar::keys[i].name.data());
      if (text != nullptr) reader.read_value(i, text);
    }
  }
  return reader.finish();
}

}  // namespace tessera::config
