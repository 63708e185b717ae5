// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

#include <tessera/recipe/preset.hpp>
#include <tessera/recipe/recipe.hpp>

namespace tessera {

/// One of the eight questions, as a value: which policies answer it.
enum class axis : unsigned char { none, rounding, pools, streams, split, pages, growth, eviction, recovery };

/// The axis that a type is a policy of; verbs differ from axis to axis, so there is at most one.
template <typename P>
inline constexpr axis axis_of = rounding_policy<P>   ? axis::rounding
                                : pools_policy<P>    ? axis::pools
                                : streams_policy<P>  ? axis::streams
                                : split_policy<P>    ? axis::split
                                : pages_policy<P>    ? axis::pages
                                : growth_policy<P>   ? axis::growth
                                : eviction_policy<P> ? axis::eviction
                                : recovery_policy<P> ? axis::recovery
                                                     : axis::none;

template <axis Axis, typename Otherwise, typename... Policy>
struct policy_for {
  using type = Otherwise;
};
template <axis Axis, typename Otherwise, typename First, typename... Rest>
struct policy_for<Axis, Otherwise, First, Rest...>
    : std::conditional_t<axis_of<First> == Axis, std::type_identity<First>,
                         policy_for<Axis, Otherwise, Rest...>> {};

template <typename... Policy>
[[nodiscard]] consteval bool distinct_axes() {
  unsigned seen = 0;
  return ((axis_of<Policy> == axis::none || ((seen >> static_cast<unsigned>(axis_of<Policy>) & 1) == 0 &&
                                             (seen |= 1u << static_cast<unsigned>(axis_of<Policy>)) != 0)) &&
          ...);
}

/// A recipe that differs from `Base` in the given policies; their order does not matter. The policies that stay begin with
/// the numbers that settings gave them, where `Base` is of a configuration string.
///
///     using base = tessera::pytorch<"garbage_collection_threshold:0.8">;
///     using less_waste = tessera::with<base, tessera::round_to_multiple<256>, tessera::split_if_rest_at_least<256>>;
///     tessera::caching_allocator<less_waste, tessera::simulated_device> tuned;
template <typename Base, typename... Policy>
struct with final {
  static_assert(((axis_of<Policy> != axis::none) && ...),
                "with<Base, Policy...>: a type given as a policy fits no axis, or is not regular and "
                "noexcept [tessera/recipe/recipe.hpp]");
  static_assert(distinct_axes<Policy...>(), "with<Base, Policy...>: two policies for one axis");

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
