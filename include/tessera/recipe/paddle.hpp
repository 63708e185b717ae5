// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/config/grammar.hpp>
#include <tessera/config/paddle.hpp>
#include <tessera/recipe/family.hpp>
#include <tessera/recipe/paddle_auto_growth.hpp>
#include <tessera/recipe/paddle_naive_best_fit.hpp>

namespace tessera {

/// What Paddle's flags choose among.
using paddle_family = family<config::paddle, paddle_auto_growth, paddle_naive_best_fit>;

/// The recipe that Paddle's flags choose, as in paddle<"FLAGS_allocator_strategy=naive_best_fit">.
template <config::fixed_string Flags = "">
using paddle = paddle_family::from<Flags>;

}  // namespace tessera
