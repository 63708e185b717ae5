// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <string>

#include "tune_composition.hpp"

/// Compositions as text that compiles.
namespace replay::tune {

inline constexpr std::array axis_names = {"rounding", "pools",  "streams",  "split",
                                          "pages",    "growth", "eviction", "recovery"};
inline constexpr std::size_t axes = axis_names.size();

/// The policy of each axis, as in `tessera::round_to_multiple<512>`.
[[nodiscard]] std::array<std::string, axes> policy_texts(const composition& c);

/// How a composition differs from pytorch, as a recipe: `with<pytorch<>, evict_never>`, or `pytorch<>` where it does not.
[[nodiscard]] std::string as_variation(const composition& c);

/// A program's beginning with a complete recipe of that name.
[[nodiscard]] std::string as_recipe(const composition& c, const std::string& name);

/// `c` with one axis as in `of`; growth and streams go together where they must.
[[nodiscard]] composition with_axis_of(composition c, std::size_t axis, const composition& of);

}  // namespace replay::tune
