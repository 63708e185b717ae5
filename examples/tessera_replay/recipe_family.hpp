// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include <tessera/config/grammar.hpp>
#include <tessera/config/parse.hpp>

#include "recipes.hpp"

namespace replay {

/// Reads a configuration string. Positions in errors do not count the characters of `before`.
template <typename Grammar>
[[nodiscard]] std::variant<typename Grammar::settings, std::string> read_conf(const std::string& before,
                                                                              const std::string& conf) {
  const std::string text = before + conf;
  auto parsed = tessera::config::parse<Grammar>(text);
  if (auto* const error = std::get_if<tessera::config::setting_error>(&parsed)) {
    error->offset -= before.size();
    return std::string(tessera::config::bad_setting("--conf", *error).what());
  }
  return std::get<typename Grammar::settings>(parsed);
}

/// Makes the recipe of a family that the settings choose.
template <typename Family>
[[nodiscard]] recipe_or_error configure_in(const recipe_entry& as, const std::string& conf,
                                           std::optional<double> fraction) {
  const auto read = read_conf<typename Family::grammar>(as.before, conf);
  if (const auto* const wrong = std::get_if<std::string>(&read)) return *wrong;
  const auto& settings = std::get<typename Family::settings>(read);
  const auto make = [&]<typename Recipe>() -> recipe_or_error {
    tessera::recipe::policies<Recipe> chosen = Recipe::configured(settings);
    if (std::string wrong = tessera::tool::detail::limit_to<Recipe>(chosen, fraction, as.name);
        !wrong.empty())
      return wrong;
    return any_recipe::of<Recipe>(chosen);
  };
  return [&]<std::size_t... I>(std::index_sequence<I...>) {
    recipe_or_error made = std::string();
    (void)((Family::index_for(settings) == I &&
            (made = make.template operator()<typename Family::template recipe_at<I>>(), true)) ||
           ...);
    return made;
  }(std::make_index_sequence<Family::count>{});
}

}  // namespace replay
