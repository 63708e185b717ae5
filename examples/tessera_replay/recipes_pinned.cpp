// SPDX-License-Identifier: Apache-2.0
#include <string>

#include <tessera/recipe/pinned.hpp>
#include <tessera/recipe/pytorch_2_14.hpp>
#include <tessera/recipe/torch_npu.hpp>

#include "recipe_family.hpp"
#include "recipes.hpp"

replay::recipe_or_error replay::families::pinned(const recipe_entry& as, const std::string& conf,
                                                 const memory_limits& limits) {
  return configure_in<tessera::recipe::torch_npu_family::pinned_family>(as, conf, limits);
}

replay::recipe_or_error replay::families::pinned_2_14(const recipe_entry& as, const std::string& conf,
                                                      const memory_limits& limits) {
  return configure_in<tessera::recipe::pytorch_2_14_family::pinned_family>(as, conf, limits);
}

replay::recipe_or_error replay::families::pinned_packed(const recipe_entry& as, const std::string& conf,
                                                        const memory_limits& limits) {
  return tessera::tool::detail::configure_plain<tessera::recipe::pinned_packed>(as, conf, limits);
}
