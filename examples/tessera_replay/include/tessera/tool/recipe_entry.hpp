// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
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
  /// any_recipe.hpp defines it.
  template <typename Recipe>
  [[nodiscard]] static any_recipe of(const recipe::policies<Recipe>& settings);

  [[nodiscard]] simulated_allocator make(provider::simulated_device device,
                                         const made_with& with = {}) const {
    return calls_->make(settings_.get(), std::move(device), with);
  }
  /// Whether it maps memory into ranges, so that it can sleep.
  [[nodiscard]] bool has_ranges() const noexcept { return calls_->has_ranges; }
  /// The recipe as a composition, for tune. Nothing if axis_out_of_search() names an axis. any_recipe.hpp defines it.
  [[nodiscard]] std::optional<composition> composed() const;
  /// The first axis whose policy cannot be chosen at run time, or null.
  [[nodiscard]] const char* axis_out_of_search() const noexcept { return calls_->axis_out_of_search; }
  /// The type, as snapshots name it.
  [[nodiscard]] std::string type_name() const { return calls_->type_name(); }
  /// Whether both are of the same type, with the same settings.
  bool operator==(const any_recipe& other) const {
    return calls_ == other.calls_ && calls_->is_equal(settings_.get(), other.settings_.get());
  }

 private:
  struct calls {
    simulated_allocator (*make)(const void*, provider::simulated_device, const made_with&);
    std::optional<composition> (*composed)(const void*);
    bool (*is_equal)(const void*, const void*);
    std::string (*type_name)();
    bool has_ranges;
    const char* axis_out_of_search;
  };
  template <typename Recipe>
  [[nodiscard]] static consteval calls make_calls();
  template <typename Recipe>
  static constexpr calls calls_of = make_calls<Recipe>();

  any_recipe(std::shared_ptr<const void> settings, const calls& made) noexcept
      : settings_(std::move(settings)), calls_(&made) {}

  std::shared_ptr<const void> settings_;
  const calls* calls_;
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
