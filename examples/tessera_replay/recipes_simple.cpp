// SPDX-License-Identifier: Apache-2.0
#include <string>

#include <tessera/recipe/passthrough.hpp>
#include <tessera/recipe/power_of_two.hpp>

#include "recipe_family.hpp"
#include "recipes.hpp"

replay::recipe_or_error replay::families::power_of_two(const recipe_entry& as, const std::string& conf,
                                                       const memory_limits& limits) {
  return tessera::tool::detail::configure_plain<tessera::recipe::power_of_two>(as, conf, limits);
}

replay::recipe_or_error replay::families::passthrough(const recipe_entry& as, const std::string& conf,
                                                      const memory_limits& limits) {
  return tessera::tool::detail::configure_plain<tessera::recipe::passthrough>(as, conf, limits);
}
