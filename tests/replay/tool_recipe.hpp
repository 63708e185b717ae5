// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <variant>

#include "tessera_replay/recipes.hpp"

namespace replay_tests {

/// The recipe that the command line knows by this name. The tool has compiled it, so that a test need not.
[[nodiscard]] inline replay::any_recipe tool_recipe(const std::string& name, const std::string& conf = "",
                                                    const replay::memory_limits& limits = {}) {
  const replay::recipe_or_error made = replay::recipe_list().choose(name, conf, limits);
  return std::get<replay::any_recipe>(made);
}

}  // namespace replay_tests
