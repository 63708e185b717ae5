// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/recipe/recipe.hpp>

namespace tessera {

/// The aliases of a recipe, and nothing else of it.
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

/// A recipe whose policies begin with the numbers that settings give them, and which is otherwise `Base`. The numbers are
/// in policies<preset<Base, Settings>>, below.
template <typename Base, auto Settings>
struct preset final : aliases_of<Base> {
  using base = Base;
  static constexpr auto settings = Settings;
};

template <typename Base, auto Settings>
struct policies<preset<Base, Settings>> : policies<Base> {
  constexpr policies() noexcept : policies<Base>(Base::configured(Settings)) {}
  constexpr policies(const policies<Base>& chosen) noexcept : policies<Base>(chosen) {}
};

}  // namespace tessera
