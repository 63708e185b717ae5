// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>

#include "words.hpp"

namespace replay {

/// The recipes that can be named on the command line.
inline constexpr std::string_view recipe_names[] = {"pytorch",
                                                    "pytorch_expandable",
                                                    "pytorch_2_14",
                                                    "pytorch_2_14_expandable",
                                                    "cuda_async",
                                                    "torch_npu",
                                                    "torch_npu_expandable",
                                                    "paddle",
                                                    "paddle_auto_growth",
                                                    "paddle_naive_best_fit",
                                                    "pinned",
                                                    "pinned_2_14",
                                                    "pinned_expandable",
                                                    "pinned_packed",
                                                    "stitched",
                                                    "stitched_calmly",
                                                    "power_of_two",
                                                    "passthrough"};

/// What is wrong with the name of a recipe, or nothing.
[[nodiscard]] inline std::string no_such_recipe(std::string_view name) {
  if (std::find(std::begin(recipe_names), std::end(recipe_names), name) != std::end(recipe_names)) return {};
  return std::string(name) + ": no such recipe; there are " + listed(recipe_names) +
         did_you_mean(name, recipe_names);
}

}  // namespace replay
