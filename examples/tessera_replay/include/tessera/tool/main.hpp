// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <tessera/recipe/recipe.hpp>
#include <tessera/tessera.hpp>
#include <tessera/tool/any_recipe.hpp>

namespace tessera::inline v0_1::tool {

/// Gives a recipe a name on the command line, as an argument of run.
///
///     using doubling = tessera::tool::named<"pytorch_256", tessera::recipe::with<tessera::recipe::pytorch<>, tessera::policy::round_to_multiple<256>>>;
template <tessera::detail::fixed_string Name, typename Recipe>
struct named;

}  // namespace tessera::inline v0_1::tool

namespace tessera::inline v0_1::tool::detail {

template <typename Recipe>
struct entry_for {
  [[nodiscard]] static recipe_entry make() { return make_as(name_of<Recipe>()); }
  [[nodiscard]] static recipe_entry make_as(const std::string& name) {
    static_assert(tessera::detail::check_recipe<Recipe>());
    return {.name = name,
            .configure = &configure_plain<Recipe>,
            .is_compared = true,
            .is_own = true,
            .add_policies = &add_policies_of<Recipe>};
  }
};
template <tessera::detail::fixed_string Name, typename Recipe>
struct entry_for<named<Name, Recipe>> {
  [[nodiscard]] static recipe_entry make() { return entry_for<Recipe>::make_as(Name.chars); }
};

}  // namespace tessera::inline v0_1::tool::detail

namespace tessera::inline v0_1::tool {

/// Runs tessera-replay with recipes of your own beside the shipped ones: the main function of a tool.
///
/// Every verb accepts them by name. compare always shows them, draw unless --recipe names others, and tune combines their
/// policies with the shipped ones.
///
///   #include <tessera/tool/main.hpp>
///   struct round_to_4_kib : tessera::policy::round_to_multiple<4096> {};
///   using coarse = tessera::recipe::with<tessera::recipe::pytorch<>, round_to_4_kib>;
///   int main(int count, char** words) { return tessera::tool::run<coarse>(count, words); }
///
/// The name of a recipe is the name in `named`, its member `static constexpr const char* name` if it lists its eight policies
/// itself, or else that of its type without the namespaces of tessera. Two recipes of one name are an error when the tool runs.
///
/// Link the library tessera::tool, which holds the verbs; CMake's tessera_add_tool does that.
///   Returns:  the exit code
template <typename... Recipe>
int run(int count, char** words) {
  return detail::run_with(count, words, {detail::entry_for<Recipe>::make()...});
}

}  // namespace tessera::inline v0_1::tool
