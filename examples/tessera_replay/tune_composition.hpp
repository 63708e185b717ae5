// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <variant>

#include <tessera/core/growth_way.hpp>
#include <tessera/recipe/recipe.hpp>

#include "tune_policies.hpp"

namespace replay::tune {

/// One choice for each axis.
struct composition {
  any_rounding rounding;
  any_pools pools;
  any_streams streams;
  any_split split;
  any_pages pages;
  any_growth growth;
  any_eviction eviction;
  any_recovery recovery;

  composition() = default;
  /// Of a recipe whose equal blocks serve by address, as those of compositions do.
  template <typename Recipe>
    requires(order_of<typename Recipe::split> == free_order::lowest_address)
  explicit composition(const policies<Recipe>& p)
      : rounding(p.rounding),
        pools(p.pools),
        streams(p.streams),
        split(p.split),
        pages(p.pages),
        growth(p.growth),
        eviction(p.eviction),
        recovery(p.recovery) {}
  bool operator==(const composition&) const = default;
};

/// The recipe of all compositions that grow in one way, and whose blocks cross from stream to stream or do not.
template <typename Growth, bool Crosses>
struct chosen_when_run final {
  struct its_streams : any_streams {
    static constexpr bool crosses = Crosses;
    bool operator==(const its_streams&) const = default;
  };
  using rounding = any_rounding;
  using pools = any_pools;
  using streams = its_streams;
  using split = any_split;
  using pages = any_pages;
  using growth = Growth;
  using eviction = any_eviction;
  using recovery = any_recovery;
};

/// Calls f.operator()<Recipe>(policies) with a recipe that decides as the composition does.
template <typename F>
auto with_recipe(const composition& c, F f) {
  const auto call = [&]<typename Growth, bool Crosses>(const Growth& growth) {
    using recipe = chosen_when_run<Growth, Crosses>;
    return f.template operator()<recipe>(
        policies<recipe>{c.rounding, c.pools, {c.streams}, c.split, c.pages, growth, c.eviction, c.recovery});
  };
  return std::visit(
      [&]<typename Growth>(const Growth& growth) {
        if constexpr (Growth::way == growth_way::segments) {
          if (c.streams.is<reuse_in_order<>>()) return call.template operator()<Growth, true>(growth);
        }
        return call.template operator()<Growth, false>(growth);
      },
      c.growth.chosen);
}

}  // namespace replay::tune
