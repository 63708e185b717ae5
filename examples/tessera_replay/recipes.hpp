// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <tessera/tool/recipe_entry.hpp>

/// The recipes that the command line can name.
namespace replay {

using tessera::tool::detail::any_observer;
using tessera::tool::detail::any_recipe;
using tessera::tool::detail::memory_limits;
using tessera::tool::detail::recipe_entry;
using tessera::tool::detail::recipe_or_error;
using tessera::tool::detail::simulated_allocator;

/// The shipped recipes, and those of the program that calls tool::run.
class recipe_list {
 public:
  explicit recipe_list(std::vector<recipe_entry> own = {});

  /// Two recipes of one name, as the text of an error; empty if there are none.
  [[nodiscard]] std::string find_fault() const;
  [[nodiscard]] const recipe_entry* find(std::string_view name) const;
  /// All names, in the order in which help shows them.
  [[nodiscard]] std::vector<std::string_view> names() const;
  /// The recipes that compare shows by default, in order. Those of the program come first.
  [[nodiscard]] std::vector<std::string> compared() const;
  [[nodiscard]] std::vector<const recipe_entry*> own() const;
  /// The text of an error if no recipe has this name, or an empty one.
  [[nodiscard]] std::string unknown(std::string_view name) const;
  /// Makes the named recipe, under a configuration string and limits.
  [[nodiscard]] recipe_or_error choose(const std::string& name, const std::string& conf,
                                       const memory_limits& limits) const;
  /// The full name of a recipe. On the command line, spaces of a name may be left out.
  [[nodiscard]] std::string full_name(std::string_view name) const;

 private:
  std::vector<recipe_entry> all_;
};

// Each family of recipes is compiled in a source of its own.
namespace families {
recipe_or_error pytorch(const recipe_entry& as, const std::string& conf, const memory_limits& limits);
recipe_or_error pytorch_2_14(const recipe_entry& as, const std::string& conf, const memory_limits& limits);
recipe_or_error torch_npu(const recipe_entry& as, const std::string& conf, const memory_limits& limits);
recipe_or_error paddle(const recipe_entry& as, const std::string& conf, const memory_limits& limits);
recipe_or_error pinned(const recipe_entry& as, const std::string& conf, const memory_limits& limits);
recipe_or_error pinned_2_14(const recipe_entry& as, const std::string& conf, const memory_limits& limits);
recipe_or_error pinned_packed(const recipe_entry& as, const std::string& conf, const memory_limits& limits);
recipe_or_error stitched(const recipe_entry& as, const std::string& conf, const memory_limits& limits);
recipe_or_error stitched_calmly(const recipe_entry& as, const std::string& conf, const memory_limits& limits);
recipe_or_error power_of_two(const recipe_entry& as, const std::string& conf, const memory_limits& limits);
recipe_or_error passthrough(const recipe_entry& as, const std::string& conf, const memory_limits& limits);
}  // namespace families

}  // namespace replay
