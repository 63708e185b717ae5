// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

#include <tessera/config/paddle.hpp>
#include <tessera/recipe/paddle_auto_growth.hpp>
#include <tessera/recipe/paddle_naive_best_fit.hpp>
#include <tessera/recipe/preset.hpp>

namespace tessera {

/// The recipe for the strategy of settings, with which its policies begin.
template <config::paddle_settings Settings>
using paddle_with =
    preset<std::conditional_t<Settings.naive_best_fit, paddle_naive_best_fit, paddle_auto_growth>, Settings>;

}  // namespace tessera
