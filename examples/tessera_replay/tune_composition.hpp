// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <variant>
#include <vector>

#include <tessera/recipe/recipe.hpp>
#include <tessera/tool/composition.hpp>

namespace replay::tune {

using namespace tessera;
using namespace tessera::tool::detail;

/// The recipe of all compositions with one growth backend, with or without reuse across streams.
template <typename Growth, bool ReusesAcrossStreams>
struct chosen_when_run final {
  struct its_streams : any_streams {
    static constexpr bool reuses_across_streams = ReusesAcrossStreams;
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

/// Calls f.operator()<Recipe>(policies) with a recipe that decides like the composition.
template <typename F>
auto with_recipe(const composition& c, F f) {
  const auto call = [&]<typename Growth, bool ReusesAcrossStreams>(const Growth& growth) {
    using recipe = chosen_when_run<Growth, ReusesAcrossStreams>;
    return f.template operator()<recipe>(tessera::recipe::policies<recipe>{
        c.rounding, c.pools, {c.streams}, c.split, c.pages, growth, c.eviction, c.recovery});
  };
  return std::visit(
      [&]<typename Growth>(const Growth& growth) {
        if constexpr (!Growth::backend::has_ranges) {
          if (c.streams.is<policy::reuse_across_streams<>>())
            return call.template operator()<Growth, true>(growth);
        }
        return call.template operator()<Growth, false>(growth);
      },
      c.growth.chosen);
}

inline constexpr std::array axis_names = {"rounding", "pools",  "streams",  "split",
                                          "pages",    "growth", "eviction", "recovery"};
inline constexpr std::size_t axes = axis_names.size();

/// The policies as C++, such as `tessera::policy::round_to_multiple<512>`.
[[nodiscard]] std::array<std::string, axes> policy_texts(const composition& c);

/// A composition as a variation of pytorch, such as `with<pytorch<>, evict_never>`.
[[nodiscard]] std::string as_variation(const composition& c);

/// A complete C++ definition of the recipe, with includes.
[[nodiscard]] std::string as_recipe(const composition& c, const std::string& name);

/// Returns `c` with one axis of `of`. Growth and streams change together if they must.
[[nodiscard]] composition with_axis_of(composition c, std::size_t axis, const composition& of);

/// Properties of a program that restrict the search.
struct program_traits {
  std::size_t peak_live = 0;     ///< bytes
  bool several_streams = false;  ///< more than one stream allocates or is recorded
  bool has_capacity = false;     ///< the device can run out of memory
  own_policies own{};            ///< policies to try beside the shipped ones
};

/// Replaces policies that have no effect here by those of pytorch: without a capacity, on one stream, or in a
/// replay.
[[nodiscard]] composition simplified(composition c, const program_traits& of);

/// Returns `from` and the compositions that differ from it in one policy, all simplified.
[[nodiscard]] std::vector<composition> neighbours(const composition& from, const program_traits& of);

/// Whether correctness would need changes of the program: record all uses on streams, or use one stream.
[[nodiscard]] bool needs_program_changes(const composition& c, const program_traits& of);

}  // namespace replay::tune
