// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <tessera/core/bytes.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/recipe/recipe.hpp>
#include <tessera/tool/simulated_allocator.hpp>

/// Recipes of any type, by name. The verbs of the tool know recipes only through this header.

namespace tessera::inline v0_1::tool::detail {

struct composition;
struct own_policies;

/// A recipe under settings, of any type.
class any_recipe {
 public:
  /// Makes one whose allocators have further extensions. any_recipe.hpp defines it.
  template <typename Recipe, typename... Extension>
  [[nodiscard]] static any_recipe of(const recipe::policies<Recipe>& settings);

  [[nodiscard]] simulated_allocator make(provider::simulated_device device,
                                         const made_with& with = {}) const {
    return make_(std::move(device), with);
  }
  /// Whether it maps memory into ranges, so that it can sleep.
  call<bool() noexcept> has_ranges;
  /// The recipe as a composition, for tune. Nothing if axis_out_of_search() names an axis.
  call<std::optional<composition>()> composed;
  /// The first axis whose policy cannot be chosen at run time, or null.
  call<const char*() noexcept> axis_out_of_search;
  /// The type, as snapshots name it.
  [[nodiscard]] std::string type_name() const { return type_name_(); }
  /// Whether both are of the same type, with the same settings.
  bool operator==(const any_recipe& other) const {
    return type_name_ == other.type_name_ && is_equal_(other.settings_.get());
  }

 private:
  template <typename Recipe, typename... Extension>
  any_recipe(std::shared_ptr<const recipe::policies<Recipe>> settings,
             std::type_identity<void(Extension...)>);

  std::shared_ptr<const void> settings_;
  std::string (*type_name_)();
  call<simulated_allocator(provider::simulated_device, const made_with&)> make_;
  call<bool(const void* settings)> is_equal_;
};

/// A recipe, or the text of an error.
using recipe_or_error = std::variant<any_recipe, std::string>;

/// What limits the memory that a recipe may reserve, beside the device.
struct memory_limits {
  std::optional<double> fraction{};  ///< of the device, as set_per_process_memory_fraction takes it
  std::size_t bytes = unlimited;
};

/// A recipe that the command line can name.
struct recipe_entry {
  std::string name;
  /// Makes the recipe under a configuration string and limits.
  recipe_or_error (*configure)(const recipe_entry&, const std::string& conf, const memory_limits&);
  const char* before = "";                        ///< settings that come before the configuration string
  bool is_compared = false;                       ///< compare shows it unless recipes are named
  bool is_own = false;                            ///< of the program that calls run<>
  void (*add_policies)(own_policies&) = nullptr;  ///< adds what tune tries
};

/// Runs the command line of tessera-replay with further recipes. The library tessera::tool defines it.
///   Returns:  the exit code
int run_with(int count, char** words, std::vector<recipe_entry> own);

}  // namespace tessera::inline v0_1::tool::detail
