// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

#include <tessera/recipe/explain_policy.hpp>
#include <tessera/recipe/preset.hpp>
#include <tessera/recipe/recipe.hpp>

namespace tessera {

template <axis Axis, typename Otherwise, typename... Policy>
struct policy_for {
  using type = Otherwise;
};
template <axis Axis, typename Otherwise, typename First, typename... Rest>
struct policy_for<Axis, Otherwise, First, Rest...>
    : std::conditional_t<axis_of<First> == Axis, std::type_identity<First>,
                         policy_for<Axis, Otherwise, Rest...>> {};

template <typename... Policy>
consteval bool check_distinct() {
  constexpr bool are_distinct = [] {
    unsigned seen = 0;
    return (
        (axis_of<Policy> == axis::none || ((seen >> static_cast<unsigned>(axis_of<Policy>) & 1) == 0 &&
                                           (seen |= 1u << static_cast<unsigned>(axis_of<Policy>)) != 0)) &&
        ...);
  }();
  // Not in `with` itself, which clang would then take for no recipe, and say so for each axis.
  static_assert(are_distinct, "with<Base, Policy...>: two policies for one axis");
  return true;
}

/// A recipe that differs from `Base` in the given policies; their order does not matter. The policies that stay begin with
/// the numbers that settings gave them, where `Base` is of a configuration string. A type that fits no axis does not compile;
/// the error names the nearest axis and what the type lacks for it.
///
///     using base = tessera::pytorch<"garbage_collection_threshold:0.8">;
///     using less_waste = tessera::with<base, tessera::round_to_multiple<256>, tessera::split_if_remainder_at_least<256>>;
///     tessera::caching_allocator<less_waste, tessera::simulated_device> tuned;
template <typename Base, typename... Policy>
struct with final {
  static_assert(recipe<Base>,
                "with<Base, Policy...>: the first type is no recipe; name one, as tessera::pytorch<>");
  static_assert((check_policy<Policy>() && ...));
  static_assert(check_distinct<Policy...>());

 private:
  template <axis Axis, typename Otherwise>
  using pick = typename policy_for<Axis, Otherwise, Policy...>::type;

 public:
  using rounding = pick<axis::rounding, typename Base::rounding>;
  using pools = pick<axis::pools, typename Base::pools>;
  using streams = pick<axis::streams, typename Base::streams>;
  using split = pick<axis::split, typename Base::split>;
  using pages = pick<axis::pages, typename Base::pages>;
  using growth = pick<axis::growth, typename Base::growth>;
  using eviction = pick<axis::eviction, typename Base::eviction>;
  using recovery = pick<axis::recovery, typename Base::recovery>;
};

/// Whether a recipe's policies begin with numbers of settings.
template <typename Recipe>
inline constexpr bool begins_preset = false;
template <typename Base, auto Settings>
inline constexpr bool begins_preset<preset<Base, Settings>> = true;
template <typename Base, typename... Policy>
inline constexpr bool begins_preset<with<Base, Policy...>> = begins_preset<Base>;

template <typename Base, typename... Policy>
  requires begins_preset<Base>
struct policies<with<Base, Policy...>> : policies<aliases_of<with<Base, Policy...>>> {
  constexpr policies() noexcept {
    const policies<Base> begun;
    keep<axis::rounding>(this->rounding, begun.rounding);
    keep<axis::pools>(this->pools, begun.pools);
    keep<axis::streams>(this->streams, begun.streams);
    keep<axis::split>(this->split, begun.split);
    keep<axis::pages>(this->pages, begun.pages);
    keep<axis::growth>(this->growth, begun.growth);
    keep<axis::eviction>(this->eviction, begun.eviction);
    keep<axis::recovery>(this->recovery, begun.recovery);
  }

 private:
  template <axis Axis>
  static constexpr void keep(auto& here, const auto& there) noexcept {
    if constexpr (((axis_of<Policy> != Axis) && ...)) here = there;
  }
};

}  // namespace tessera
