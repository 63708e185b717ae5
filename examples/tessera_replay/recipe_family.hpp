// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <variant>

#include <tessera/config/grammar.hpp>
#include <tessera/config/parse.hpp>
#include <tessera/tool/any_recipe.hpp>

#include "recipes.hpp"
#include "terminal.hpp"

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

/// Calls f.operator()<Recipe>(policies) with the family's recipe for the settings.
///   Returns:  the text of an error, or an empty one
template <typename Family, typename F>
[[nodiscard]] std::string choose_in(const std::string& before, const std::string& conf, F f) {
  const auto read = read_conf<typename Family::grammar>(before, conf);
  if (const auto* const wrong = std::get_if<std::string>(&read)) return *wrong;
  const auto& settings = std::get<typename Family::settings>(read);
  [&]<std::size_t... I>(std::index_sequence<I...>) {
    const auto call = [&]<typename Recipe>() { f.template operator()<Recipe>(Recipe::configured(settings)); };
    (void)((Family::index_for(settings) == I &&
            (call.template operator()<typename Family::template recipe_at<I>>(), true)) ||
           ...);
  }(std::make_index_sequence<Family::count>{});
  return {};
}

/// Makes the recipe of a family that the settings choose. Says which of the given settings have no effect. The
/// allocators of the recipe have further extensions.
template <typename Family, typename... Extension>
[[nodiscard]] recipe_or_error configure_in(const recipe_entry& as, const std::string& conf,
                                           const memory_limits& limits) {
  recipe_or_error made = std::string();
  const auto read = read_conf<typename Family::grammar>(as.before, conf);
  const auto* const given = has_given_conf() ? std::get_if<typename Family::settings>(&read) : nullptr;
  for (const auto& key : Family::grammar::keys) {
    if (given != nullptr && Family::has_no_effect(key, *given))
      print_once(tessera::config::bad_setting("--recipe " + as.name, key.unread()).what());
  }
  const std::string wrong =
      choose_in<Family>(as.before, conf, [&]<typename Recipe>(tessera::recipe::policies<Recipe> settings) {
        if (std::string none = tessera::tool::detail::limit_to<Recipe>(settings, limits, as.name);
            !none.empty()) {
          made = none;
        } else {
          made = any_recipe::of<Recipe, Extension...>(settings);
        }
      });
  if (!wrong.empty()) return wrong;
  return made;
}

}  // namespace replay
