// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/recipe/recipe.hpp>

namespace tessera {

/// A recipe whose policies begin with the numbers that settings give them, and which is otherwise `Base`. The numbers are
/// in policies<preset<Base, Settings>>, below.
template <typename Base, auto Settings>
struct preset final {
  using base = Base;
  static constexpr auto settings = Settings;

  using rounding = typename Base::rounding;
  using pools = typename Base::pools;
  using streams = typename Base::streams;
  using split = typename Base::split;
  using pages = typename Base::pages;
  using growth = typename Base::growth;
  using eviction = typename Base::eviction;
  using recovery = typename Base::recovery;
};

template <typename Base, auto Settings>
struct policies<preset<Base, Settings>> : policies<Base> {
  constexpr policies() noexcept : policies<Base>(Base::configured(Settings)) {}
  constexpr policies(const policies<Base>& chosen) noexcept : policies<Base>(chosen) {}
};

}  // namespace tessera
