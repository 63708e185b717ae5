// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/recipe/cuda_async.hpp>
#include <tessera/recipe/paddle.hpp>
#include <tessera/recipe/passthrough.hpp>
#include <tessera/recipe/pinned.hpp>
#include <tessera/recipe/power_of_two.hpp>
#include <tessera/recipe/pytorch_2_11.hpp>
#include <tessera/recipe/pytorch_2_14.hpp>
#include <tessera/recipe/stitched.hpp>
#include <tessera/recipe/torch_npu.hpp>

#include "../by_day.hpp"

namespace conformance {

template <typename Recipe>
struct named {
  using recipe = Recipe;
  const char* name;
};

/// Calls f(named<Recipe>) for every recipe of the library. architecture/shipped.cmake checks that none is
/// missing.
template <typename F>
constexpr void for_each_shipped(F f) {
  using namespace tessera;
  using namespace tessera::detail;
  f(named<cuda_async>{"cuda_async"});
  f(named<paddle_auto_growth>{"paddle_auto_growth"});
  f(named<paddle_naive_best_fit>{"paddle_naive_best_fit"});
  f(named<paddle_virtual_memory>{"paddle_virtual_memory"});
  f(named<paddle_virtual_memory_v2>{"paddle_virtual_memory_v2"});
  f(named<passthrough>{"passthrough"});
  f(named<pinned>{"pinned"});
  f(named<pinned_2_14>{"pinned_2_14"});
  f(named<pinned_expandable>{"pinned_expandable"});
  f(named<pinned_packed>{"pinned_packed"});
  f(named<power_of_two>{"power_of_two"});
  f(named<pytorch_2_11_expandable>{"pytorch_2_11_expandable"});
  f(named<pytorch_2_11_native>{"pytorch_2_11_native"});
  f(named<pytorch_2_14_expandable>{"pytorch_2_14_expandable"});
  f(named<pytorch_2_14_native>{"pytorch_2_14_native"});
  f(named<pytorch_expandable>{"pytorch_expandable"});
  f(named<pytorch_native>{"pytorch_native"});
  f(named<stitched>{"stitched"});
  f(named<torch_npu_expandable>{"torch_npu_expandable"});
  f(named<torch_npu_native>{"torch_npu_native"});
}

/// Whether a recipe is tested by day, as those of types_by_day are.
template <typename Recipe>
inline constexpr bool runs_by_day =
    tessera::is_night ||
    tessera::detail::is_one_of<Recipe, tessera::recipe::pytorch_native, tessera::recipe::pytorch_expandable,
                               tessera::recipe::stitched, tessera::recipe::cuda_async>;

/// Calls f(named<Recipe>) for the recipes that are tested by day.
template <typename F>
constexpr void for_each_by_day(F f) {
  for_each_shipped([&f]<typename Recipe>(named<Recipe> r) {
    if constexpr (runs_by_day<Recipe>) f(r);
  });
}

}  // namespace conformance
