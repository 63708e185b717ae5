// SPDX-License-Identifier: Apache-2.0
#include <string>

#include <tessera/recipe/pytorch_2_14.hpp>

#include "recipe_family.hpp"
#include "recipes.hpp"
#include "restoring.hpp"

replay::recipe_or_error replay::families::pytorch_2_14(const recipe_entry& as, const std::string& conf,
                                                       const memory_limits& limits) {
  return configure_in<tessera::recipe::pytorch_2_14_family, restoring>(as, conf, limits);
}
