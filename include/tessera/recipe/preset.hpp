// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/recipe/recipe.hpp>

namespace tessera {
namespace detail {

/// The eight aliases of a recipe, without its other members.
template <typename Recipe>
struct aliases_of {
  using rounding = typename Recipe::rounding;
  using pools = typename Recipe::pools;
  using streams = typename Recipe::streams;
  using split = typename Recipe::split;
  using pages = typename Recipe::pages;
  using growth = typename Recipe::growth;
  using eviction = typename Recipe::eviction;
  using recovery = typename Recipe::recovery;
};

/// A recipe equal to `Base` whose policies start with the values that settings give them.
template <typename Base, auto Settings>
struct preset final : aliases_of<Base> {
  using base = Base;
  static constexpr auto settings = Settings;
};

}  // namespace detail

template <typename Base, auto Settings>
struct policies<detail::preset<Base, Settings>> : policies<Base> {
  constexpr policies() noexcept : policies<Base>(Base::configured(Settings)) {}
  constexpr policies(const policies<Base>& values) noexcept : policies<Base>(values) {}
};

}  // namespace tessera
