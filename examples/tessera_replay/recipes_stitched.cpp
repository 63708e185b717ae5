// SPDX-License-Identifier: Apache-2.0
#include <string>

#include <tessera/recipe/stitched.hpp>
#include <tessera/recipe/with.hpp>

#include "recipe_family.hpp"
#include "recipes.hpp"

replay::recipe_or_error replay::families::stitched(const recipe_entry& as, const std::string& conf,
                                                   const memory_limits& limits) {
  return tessera::tool::detail::configure_plain<tessera::recipe::stitched>(as, conf, limits);
}

replay::recipe_or_error replay::families::stitched_calmly(const recipe_entry& as, const std::string& conf,
                                                          const memory_limits& limits) {
  return tessera::tool::detail::configure_plain<
      tessera::recipe::with<tessera::recipe::stitched, tessera::policy::grow_by_stitching<std::size_t{32}>>>(
      as, conf, limits);
}
