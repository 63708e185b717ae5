// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

#include <tessera/law/recipe_laws.hpp>
#include <tessera/recipe/recipe.hpp>

namespace tessera::inline v0_1::detail {

enum class axis : unsigned char { none, rounding, pools, streams, split, pages, growth, eviction, recovery };
inline constexpr std::size_t axis_count = 9;

/// The axis of a policy, or none. A policy has at most one axis, because the axes have different members.
template <typename P>
inline constexpr axis axis_of = policy::rounding_policy<P>   ? axis::rounding
                                : policy::pools_policy<P>    ? axis::pools
                                : policy::streams_policy<P>  ? axis::streams
                                : policy::split_policy<P>    ? axis::split
                                : policy::pages_policy<P>    ? axis::pages
                                : policy::growth_policy<P>   ? axis::growth
                                : policy::eviction_policy<P> ? axis::eviction
                                : policy::recovery_policy<P> ? axis::recovery
                                                             : axis::none;

/// The axis with which the type shares most member names, or none.
template <typename P>
[[nodiscard]] consteval axis nearest_axis() {
  int members[axis_count] = {};
  const auto count = [&members](axis of, bool exists) {
    members[static_cast<std::size_t>(of)] += exists ? 1 : 0;
  };
  count(axis::rounding, requires { &P::block_size; });
  count(axis::pools, requires { &P::count; });
  count(axis::pools, requires { &P::select; });
  count(axis::streams, requires { &P::uses_events; });
  count(axis::streams, requires { &P::reuse_key; });
  count(axis::streams, requires { &P::needs_event; });
  count(axis::streams, requires { &P::reuses_across_streams; });
  count(axis::streams, requires { &P::reuse_rules; });
  count(axis::streams, requires { &P::should_poll_events; });
  count(axis::split, requires { &P::may_serve; });
  count(axis::split, requires { &P::should_split; });
  count(axis::split, requires { &P::allocated_end; });
  count(axis::split, requires { &P::oversize_from; });
  count(axis::pages, requires { &P::uses_page_kinds; });
  count(axis::pages, requires { &P::backing; });
  count(axis::growth, requires { &P::segment_size; });
  count(axis::growth, requires { &P::limit; });
  count(axis::eviction, requires { &P::bytes_to_evict; });
  count(axis::eviction, requires { &P::is_candidate; });
  count(axis::eviction, requires { &P::should_evict; });
  count(axis::recovery, requires { &P::steps; });
  count(axis::growth, requires { typename P::backend; });
  std::size_t nearest = 0;
  for (std::size_t i = 1; i < axis_count; ++i) {
    if (members[i] > members[nearest]) nearest = i;
  }
  return static_cast<axis>(nearest);
}

/// `Base` with `P` on one axis, whether or not it is a policy of that axis.
template <typename Base, axis Axis, typename P>
struct replaced {
  using rounding = std::conditional_t<Axis == axis::rounding, P, typename Base::rounding>;
  using pools = std::conditional_t<Axis == axis::pools, P, typename Base::pools>;
  using streams = std::conditional_t<Axis == axis::streams, P, typename Base::streams>;
  using split = std::conditional_t<Axis == axis::split, P, typename Base::split>;
  using pages = std::conditional_t<Axis == axis::pages, P, typename Base::pages>;
  using growth = std::conditional_t<Axis == axis::growth, P, typename Base::growth>;
  using eviction = std::conditional_t<Axis == axis::eviction, P, typename Base::eviction>;
  using recovery = std::conditional_t<Axis == axis::recovery, P, typename Base::recovery>;
};

/// Whether a type is a policy of two axes.
template <typename P>
[[nodiscard]] consteval bool fits_several_axes() {
  const int axes = policy::rounding_policy<P> + policy::pools_policy<P> + policy::streams_policy<P> +
                   policy::split_policy<P> + policy::pages_policy<P> + policy::growth_policy<P> +
                   policy::eviction_policy<P> + policy::recovery_policy<P>;
  return axes > 1;
}

/// Stops the compiler if a type is not a policy of any axis. The message says what the nearest axis requires.
template <typename Base, typename P>
consteval bool check_policy() {
  static_assert(
      !fits_several_axes<P>(),
      "with<>: a policy answers the questions of two axes, so one of them would never be asked; write "
      "two policies [tessera/recipe/recipe.hpp]");
  if constexpr (axis_of<P> == axis::none) {
    constexpr axis nearest = nearest_axis<P>();
    static_assert(nearest != axis::none,
                  "with<>: a type given as a policy fits no axis: it has none of block_size, select, "
                  "reuse_key, may_serve, backing, segment_size, bytes_to_evict and steps "
                  "[tessera/recipe/recipe.hpp]");
    static_assert(nearest == axis::none || regular<P>,
                  "with<>: a policy is regular: it has a default constructor, copies and bool "
                  "operator==(const P&) const [tessera/core/parameter.hpp]");
    if constexpr (nearest != axis::none && regular<P>) return check_recipe<replaced<Base, nearest, P>>();
  }
  return true;
}

template <axis Axis, typename Default, typename... Policy>
struct policy_for {
  using type = Default;
};
template <axis Axis, typename Default, typename First, typename... Rest>
struct policy_for<Axis, Default, First, Rest...>
    : std::conditional_t<axis_of<First> == Axis, std::type_identity<First>,
                         policy_for<Axis, Default, Rest...>> {};

template <typename... Policy>
consteval bool check_distinct() {
  constexpr bool are_distinct = [] {
    unsigned seen = 0;
    for (const axis a : {axis::none, axis_of<Policy>...}) {
      const unsigned bit = 1u << static_cast<unsigned>(a);
      if (a != axis::none && (seen & bit) != 0) return false;
      seen |= bit;
    }
    return true;
  }();
  // This check is not in `with` itself, because clang would then report each axis instead.
  static_assert(are_distinct, "with<Base, Policy...>: two policies for one axis");
  return true;
}

/// The aliases of with<Base, Policy...>.
template <typename Base, typename... Policy>
struct aliases_with {
  static_assert(
      recipe::well_formed<Base>,
      "with<Base, Policy...>: the first type is no recipe; name one, as tessera::recipe::pytorch<>");
  static_assert((check_policy<Base, Policy>() && ...));
  static_assert(check_distinct<Policy...>());

 private:
  template <axis Axis, typename Default>
  using pick = typename policy_for<Axis, Default, Policy...>::type;

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

}  // namespace tessera::inline v0_1::detail

namespace tessera::inline v0_1::recipe {

/// A recipe that differs from `Base` in the given policies, in any order.
///
/// The other policies keep their values from a configuration string. A new policy has its own values: what the string said about
/// its axis is gone. A type that is not a policy of any axis
/// does not compile. The error says what the nearest axis requires. If the policies break a law
/// [tessera/law/recipe_laws.hpp] with their initial numbers, as far as they answer in constant expressions, the error
/// names the law.
///
///     using base = tessera::recipe::pytorch<"garbage_collection_threshold:0.8">;
///     using less_waste =
///         tessera::recipe::with<base, tessera::policy::round_to_multiple<256>, tessera::policy::split_if_remainder_at_least<256>>;
///     tessera::caching_allocator<less_waste, tessera::provider::simulated_device> tuned;
template <typename Base, typename... Policy>
struct with final : detail::aliases_with<Base, Policy...> {
  static_assert(detail::check_policies<detail::aliases_with<Base, Policy...>>());
};

}  // namespace tessera::inline v0_1::recipe

namespace tessera::inline v0_1::detail {

template <typename Base, auto Settings, typename Grammar>
struct preset;

/// Whether a recipe's policies start with the values of a configuration string.
template <typename Recipe>
inline constexpr bool is_configured = false;
template <typename Base, auto Settings, typename Grammar>
inline constexpr bool is_configured<preset<Base, Settings, Grammar>> = true;
template <typename Base, typename... Policy>
inline constexpr bool is_configured<recipe::with<Base, Policy...>> = is_configured<Base>;

}  // namespace tessera::inline v0_1::detail

namespace tessera::inline v0_1::recipe {

template <typename Base, typename... Policy>
  requires detail::is_configured<Base>
struct policies<detail::aliases_with<Base, Policy...>>
    : policies<detail::aliases_of<detail::aliases_with<Base, Policy...>>> {
  constexpr policies() noexcept {
    const policies<Base> base;
    copy<detail::axis::rounding>(this->rounding, base.rounding);
    copy<detail::axis::pools>(this->pools, base.pools);
    copy<detail::axis::streams>(this->streams, base.streams);
    copy<detail::axis::split>(this->split, base.split);
    copy<detail::axis::pages>(this->pages, base.pages);
    copy<detail::axis::growth>(this->growth, base.growth);
    copy<detail::axis::eviction>(this->eviction, base.eviction);
    copy<detail::axis::recovery>(this->recovery, base.recovery);
  }

 private:
  /// Copies a policy that is not replaced.
  template <detail::axis Axis>
  static constexpr void copy(auto& to, const auto& from) noexcept {
    if constexpr (((detail::axis_of<Policy> != Axis) && ...)) to = from;
  }
};
/// The policies of a variation of a recipe with a configuration string. They start with the values of that
/// string.
template <typename Base, typename... Policy>
  requires detail::is_configured<Base>
struct policies<with<Base, Policy...>> : policies<detail::aliases_with<Base, Policy...>> {
  constexpr policies() noexcept = default;
};

}  // namespace tessera::inline v0_1::recipe
