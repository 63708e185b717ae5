// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tuple>
#include <type_traits>

#include <tessera/config/grammar.hpp>
#include <tessera/config/parse.hpp>
#include <tessera/recipe/recipe.hpp>

namespace tessera::inline v0_1::detail {

/// The recipes of one system. The first recipe R with R::accepts(settings) is chosen. R::configured(settings)
/// gives its policies.
///
///     constexpr tessera::config::pytorch::settings wanted{.max_split_size = 128_MiB, .expandable_segments = true};
///     using recipe = tessera::recipe::pytorch_family::under<wanted>;  // pytorch_family::expandable, beginning with 128 MiB
template <typename Grammar, typename... Recipe>
struct family {
  using grammar = Grammar;
  using settings = typename Grammar::settings;
  static constexpr std::size_t count = sizeof...(Recipe);
  template <std::size_t Index>
  using recipe_at = std::tuple_element_t<Index, std::tuple<Recipe...>>;

  /// Returns the index of the first recipe that serves the settings; `count` if there is none.
  [[nodiscard]] static constexpr std::size_t index_for(const settings& wanted) noexcept {
    const bool accepted[] = {Recipe::accepts(wanted)...};
    std::size_t index = 0;
    while (index < count && !accepted[index]) ++index;
    return index;
  }

  /// The recipe for settings that are known at compile time; for default settings, the plain recipe. The copy
  /// in braces is for nvcc, which loses a template parameter of class type, and the type of a copy in
  /// parentheses.
  template <settings Settings>
  using under = std::conditional_t<Settings == settings{}, recipe_at<index_for(Settings)>,
                                   preset<recipe_at<index_for(Settings)>, settings{Settings}>>;
  /// The recipe for a configuration string; an invalid string does not compile.
  template <fixed_string Text>
  using from = under<config::detail::settings_in<Grammar, Text>()>;
};

}  // namespace tessera::inline v0_1::detail
