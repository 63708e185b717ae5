// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <tessera/interop/memory_fraction.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/recipe/recipe.hpp>
#include <tessera/recipe/with.hpp>
#include <tessera/tool/composition.hpp>
#include <tessera/tool/recipe_entry.hpp>
#include <tessera/tool/simulated.hpp>

/// Makes recipes for the tool. The sources that compile recipes include this header.

namespace tessera::inline v0_1::tool {

/// Policies that the verb tune tries on the axis of a policy, beside that policy itself.
///
///     namespace mine {
///     template <std::size_t Searches>
///     struct evict_unused : tessera::policy::evict_never {
///       using alternatives = tessera::tool::alternatives<evict_unused<100>, evict_unused<10'000>>;
///     };
///     }  // namespace mine
template <typename... Policy>
struct alternatives {};

}  // namespace tessera::inline v0_1::tool

namespace tessera::inline v0_1::tool::detail {

template <typename Recipe, typename... Extension>
any_recipe::any_recipe(std::shared_ptr<const recipe::policies<Recipe>> settings,
                       std::type_identity<void(Extension...)>)
    : has_ranges(*settings, [](const auto&) { return Recipe::growth::backend::has_ranges; }),
      composed(*settings,
               []([[maybe_unused]] const auto& p) -> std::optional<composition> {
                 if constexpr (detail::axis_out_of_search<Recipe>() == nullptr)
                   return composition_of<Recipe>(p);
                 return {};
               }),
      axis_out_of_search(*settings, [](const auto&) { return detail::axis_out_of_search<Recipe>(); }),
      settings_(settings),
      type_name_(&tessera::detail::recipe_name<Recipe>),
      make_(*settings,
            [](const auto& p, provider::simulated_device device, const made_with& with) {
              return simulated_allocator::make<Recipe, Extension...>(std::move(device), p, with);
            }),
      is_equal_(*settings,
                [](const auto& p, const void* other) { return p == *static_cast<decltype(&p)>(other); }) {}

template <typename Recipe, typename... Extension>
any_recipe any_recipe::of(const recipe::policies<Recipe>& settings) {
  return {std::make_shared<const recipe::policies<Recipe>>(settings),
          std::type_identity<void(Extension...)>{}};
}

/// Sets limits in policies.
///   Returns:  the text of an error, or an empty one
template <typename Recipe>
[[nodiscard]] std::string limit_to(recipe::policies<Recipe>& settings, const memory_limits& limits,
                                   const std::string& name) {
  if (!limits.fraction && limits.bytes == unlimited) return {};
  if constexpr (requires { settings.growth.limit = memory_limit{}; }) {
    if (limits.fraction) (void)interop::set_memory_fraction(settings, *limits.fraction);
    memory_limit limit(settings.growth.limit);
    if (limits.bytes < limit.bytes) {
      limit.bytes = limits.bytes;
      settings.growth.limit = limit;
    }
    return {};
  } else {
    return "recipe " + name + ": its growth policy has no limit that can be set, which " +
           (limits.fraction ? "--memory-fraction needs" : "the recorded run had; --capacity replaces it") +
           "; declare it as `tessera::memory_limit limit{};`";
  }
}

/// Makes a recipe that takes no settings.
template <typename Recipe>
[[nodiscard]] recipe_or_error configure_plain(const recipe_entry& as, const std::string& conf,
                                              const memory_limits& limits) {
  if (!conf.empty()) return "--conf: recipe " + as.name + " takes no settings";
  recipe::policies<Recipe> settings;
  if (std::string wrong = limit_to<Recipe>(settings, limits, as.name); !wrong.empty()) return wrong;
  return any_recipe::of<Recipe>(settings);
}

template <typename P, typename Any, typename Own, typename... A>
void add_alternatives(std::vector<Any>& to, alternatives<A...>) {
  static_assert(((tessera::detail::axis_of<A> == tessera::detail::axis_of<P>) && ...),
                "tool::alternatives: a policy and its alternatives answer the questions of one axis");
  static_assert((is_choosable<Any, Own, A> && ...),
                "tool::alternatives: one of these policies cannot be chosen at run time: growth needs "
                "segment_backend, split lowest_address without note_served, eviction neither a clock nor "
                "value nor counts_reuses, streams no wait_for_events, and pools count at most 2");
  (to.push_back(chosen_at_run_time<Any, Own>(A())), ...);
}
/// Adds a policy and its alternatives.
template <typename Own, typename Any, typename P>
void add_policy(std::vector<Any>& to, const P& p) {
  if constexpr (is_choosable<Any, Own, P>) to.push_back(chosen_at_run_time<Any, Own>(p));
  if constexpr (requires { typename P::alternatives; })
    add_alternatives<P, Any, Own>(to, typename P::alternatives());
}
/// Adds the policies of a recipe, and their alternatives. The axis pages has none.
template <typename Recipe>
void add_policies_of(own_policies& to) {
  const recipe::policies<Recipe> p;
  add_policy<own_rounding>(to.rounding, p.rounding);
  add_policy<own_pools>(to.pools, p.pools);
  add_policy<own_streams>(to.streams, p.streams);
  if constexpr (tessera::detail::free_order_of<typename Recipe::split> == free_order::lowest_address)
    add_policy<own_split>(to.split, p.split);
  add_policy<own_segments>(to.growth, p.growth);
  add_policy<own_eviction>(to.eviction, p.eviction);
  add_policy<own_recovery>(to.recovery, p.recovery);
}

/// Removes the namespaces of tessera, and those without a name, from the spelling of a type. The recipe pytorch<> has
/// the name that the tool gives it.
[[nodiscard]] inline std::string short_name(std::string name) {
  const auto replace = [&name](std::string_view from, std::string_view by) {
    for (std::size_t at = 0; (at = name.find(from, at)) != std::string::npos;)
      name.replace(at, from.size(), by);
  };
  for (const std::string_view hidden :
       {"tessera::recipe::", "tessera::policy::", "tessera::", "(anonymous namespace)::", "{anonymous}::"})
    replace(hidden, "");
  replace("pytorch_native", "pytorch");
  replace("> >", ">>");
  return name;
}

/// The name of a recipe on the command line: its member `name`, or its type.
template <typename Recipe>
[[nodiscard]] std::string name_of() {
  if constexpr (requires { std::string(Recipe::name); }) {
    return std::string(Recipe::name);
  } else {
    return short_name(tessera::detail::recipe_name<Recipe>());
  }
}

}  // namespace tessera::inline v0_1::tool::detail
