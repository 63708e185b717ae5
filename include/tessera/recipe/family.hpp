// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tuple>
#include <type_traits>

#include <tessera/config/grammar.hpp>
#include <tessera/config/parse.hpp>
#include <tessera/recipe/recipe.hpp>

namespace tessera::inline v0_1::detail {

/// Whether a setting differs from its default and has no effect on a recipe. A key has an effect if it chooses the recipe,
/// or if a policy reads it, even where another key overrides it. A key that has no effect in any allocator does not count.
template <typename Grammar, typename Recipe>
[[nodiscard]] constexpr bool has_no_effect(const typename Grammar::key& key,
                                           const typename Grammar::settings& wanted) noexcept {
  using settings = typename Grammar::settings;
  const auto set = [&wanted](settings in, const auto& each) {
    settings from = wanted;
    each.swap(in, from);
    return in;
  };
  if (key.is_equal(wanted, settings{})) return false;
  settings without = wanted, defaults{};
  key.swap(without, defaults);
  Grammar::set_dependent_defaults(without, [&key](std::string_view name) { return name != key.name; });
  if (without == wanted || key.reader() == "none") return false;
  if (Recipe::accepts(without) && !(Recipe::configured(without) == Recipe::configured(wanted))) return false;
  settings base{};  // the defaults, except for a key that chooses the recipe
  for (const auto& each : Grammar::keys) {
    if (!Recipe::accepts(base)) base = set(settings{}, each);
  }
  if (!Recipe::accepts(base)) return false;
  const settings with = set(base, key);
  const bool chooses = !Recipe::accepts(settings{}) && Recipe::accepts(set(settings{}, key));
  return !chooses && Recipe::accepts(with) && Recipe::configured(with) == Recipe::configured(base);
}

/// Names the error when a setting in a string that is a template argument has no effect. Compilers print its arguments:
/// the key, and its effect, which begins with what reads it. Never defined.
template <auto Key, auto Effect>
struct no_policy_of_the_recipe_reads;

/// Stops the compiler if a setting has no effect on an allocator, because only a front end, an adaptor or another recipe reads
/// it. Two kinds may be idle, as in the original: a key that its grammar allows beside another one, and the keys for the other
/// memory, of the device or the host, because allocators for both share a string.
template <typename Grammar, typename Recipe, auto Settings>
consteval bool check_effects() {
  constexpr auto must_be_read = [](const auto& key) {
    constexpr bool on_host = requires { Recipe::is_for_host_memory; };
    const bool may_idle = key.idle_beside != nullptr && Settings.*key.idle_beside;
    return key.is_for_host_memory() == on_host && !may_idle;
  };
  constexpr const auto* unread = [must_be_read] {
    const auto* key = Grammar::keys.begin();
    while (key != Grammar::keys.end() &&
           !(must_be_read(*key) && has_no_effect<Grammar, Recipe>(*key, Settings)))
      ++key;
    return key;
  }();
  if constexpr (unread != Grammar::keys.end()) {
    return no_policy_of_the_recipe_reads<config::detail::copy_of<unread->name.size()>(unread->name),
                                         config::detail::copy_of<unread->effect.size()>(unread->effect)>{};
  }
  return true;
}

/// A recipe equal to `Base` whose policies start with the values that settings give them.
template <typename Base, auto Settings, typename Grammar>
struct preset final : aliases_of<Base> {
  using base = Base;
  static constexpr auto settings = Settings;
};

}  // namespace tessera::inline v0_1::detail

namespace tessera::inline v0_1::recipe {

template <typename Base, auto Settings, typename Grammar>
struct policies<detail::preset<Base, Settings, Grammar>> : policies<Base> {
  static_assert(detail::check_effects<Grammar, Base, Settings>());
  constexpr policies() noexcept : policies<Base>(Base::configured(Settings)) {}
  constexpr policies(const policies<Base>& values) noexcept : policies<Base>(values) {}
};

}  // namespace tessera::inline v0_1::recipe

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

  /// Whether a setting has no effect on the recipe that the settings choose.
  [[nodiscard]] static constexpr bool has_no_effect(const typename Grammar::key& key,
                                                    const settings& wanted) noexcept {
    std::size_t left = index_for(wanted) + 1;
    return ((--left == 0 && detail::has_no_effect<Grammar, Recipe>(key, wanted)) || ...);
  }

  /// The recipe for settings that are known at compile time; for default settings, the plain recipe. The copy
  /// in braces is for nvcc, which loses a template parameter of class type, and the type of a copy in
  /// parentheses.
  template <settings Settings>
  using under = std::conditional_t<Settings == settings{}, recipe_at<index_for(Settings)>,
                                   preset<recipe_at<index_for(Settings)>, settings{Settings}, Grammar>>;
  /// The recipe for a configuration string; an invalid string does not compile.
  template <fixed_string Text>
  using from = under<config::detail::settings_in<Grammar, Text>()>;
};

}  // namespace tessera::inline v0_1::detail
