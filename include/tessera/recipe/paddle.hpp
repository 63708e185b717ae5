// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/config/grammar.hpp>
#include <tessera/config/paddle.hpp>
#include <tessera/recipe/family.hpp>
#include <tessera/recipe/paddle_auto_growth.hpp>
#include <tessera/recipe/paddle_naive_best_fit.hpp>

namespace tessera {

/// The recipes that Paddle's flags choose from.
using paddle_family = family<config::paddle, paddle_auto_growth, paddle_naive_best_fit>;

/// The recipe for Paddle's flags, for example paddle<"FLAGS_allocator_strategy=naive_best_fit">.
template <config::detail::fixed_string Flags = "">
using paddle = paddle_family::from<Flags>;

}  // namespace tessera
