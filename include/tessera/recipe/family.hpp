// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <tuple>
#include <type_traits>

#include <tessera/config/grammar.hpp>
#include <tessera/config/parse.hpp>
#include <tessera/recipe/preset.hpp>
#include <tessera/recipe/recipe.hpp>

namespace tessera {

/// The recipes of one system. Settings choose the first recipe R with R::serves(settings), and the policies
/// R::configured(settings).
///
///     constexpr tessera::config::pytorch::settings said{.max_split_size = 128_MiB, .expandable_segments = true};
///     using recipe = tessera::pytorch_family::under<said>;  // a pytorch_expandable that begins with 128 MiB
template <typename Grammar, typename... Recipe>
struct family {
  using grammar = Grammar;
  using settings = typename Grammar::settings;
  static constexpr std::size_t count = sizeof...(Recipe);
  template <std::size_t Index>
  using recipe_at = std::tuple_element_t<Index, std::tuple<Recipe...>>;

  [[nodiscard]] static constexpr std::size_t index_for(const settings& given) noexcept {
    std::size_t index = 0;
    (void)((Recipe::serves(given) || (++index, false)) || ...);
    return index;
  }

  template <settings Given>
  using chosen = recipe_at<index_for(Given)>;
  /// The recipe for settings that are known at compile time; for default settings, the plain recipe. The copy
  /// in braces is for nvcc, which loses a template parameter of class type, and the type of a copy in
  /// parentheses.
  template <settings Given>
  using under =
      std::conditional_t<Given == settings{}, chosen<Given>, detail::preset<chosen<Given>, settings{Given}>>;
  /// The recipe for a configuration string; an invalid string does not compile.
  template <auto Text>
  using from = under<config::detail::settings_in<Grammar, Text>()>;
};

}  // namespace tessera
