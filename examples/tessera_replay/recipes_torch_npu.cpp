// SPDX-License-Identifier: Apache-2.0
#include <string>

#include <tessera/recipe/torch_npu.hpp>

#include "recipe_family.hpp"
#include "recipes.hpp"

replay::recipe_or_error replay::families::torch_npu(const recipe_entry& as, const std::string& conf,
                                                    const memory_limits& limits) {
  return configure_in<tessera::recipe::torch_npu_family>(as, conf, limits);
}
