// SPDX-License-Identifier: Apache-2.0
#include "recipes.hpp"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "commands.hpp"

namespace {

using replay::recipe_entry;
namespace families = replay::families;

constexpr bool is_compared = true;

std::string without_spaces(std::string_view text) {
  std::string kept(text);
  std::erase(kept, ' ');
  return kept;
}

std::vector<recipe_entry> shipped() {
  constexpr const char* expandable = "expandable_segments:True,";
  return {
      {"pytorch", &families::pytorch, "", is_compared},
      {"pytorch_expandable", &families::pytorch, expandable, is_compared},
      {"pytorch_2_14", &families::pytorch_2_14},
      {"pytorch_2_14_expandable", &families::pytorch_2_14, expandable},
      {"cuda_async", &families::pytorch, "backend:cudaMallocAsync,", is_compared},
      {"torch_npu", &families::torch_npu, "", is_compared},
      {"torch_npu_expandable", &families::torch_npu, expandable, is_compared},
      {"paddle", &families::paddle},
      {"paddle_auto_growth", &families::paddle, "", is_compared},
      {"paddle_naive_best_fit", &families::paddle, "FLAGS_allocator_strategy=naive_best_fit,", is_compared},
      {"paddle_virtual_memory", &families::paddle, "FLAGS_use_virtual_memory_auto_growth=1,", is_compared},
      {"paddle_virtual_memory_v2", &families::paddle, "FLAGS_use_vmm_auto_growth_best_fit_allocator_v2=1,",
       is_compared},
      {"pinned", &families::pinned},
      {"pinned_2_14", &families::pinned_2_14},
      {"pinned_expandable", &families::pinned, "pin_memory_expandable_segments:True,"},
      {"pinned_packed", &families::pinned_packed},
      {"stitched", &families::stitched, "", is_compared},
      {"stitched_calmly", &families::stitched_calmly, "", is_compared},
      {"power_of_two", &families::power_of_two, "", is_compared},
      {"passthrough", &families::passthrough, "", is_compared}};
}

}  // namespace

replay::recipe_list::recipe_list(std::vector<recipe_entry> own) : all_(shipped()) {
  all_.insert(all_.end(), std::make_move_iterator(own.begin()), std::make_move_iterator(own.end()));
}

std::string replay::recipe_list::find_fault() const {
  for (std::size_t i = 0; i < all_.size(); ++i) {
    if (all_[i].name.empty()) return "tool::run: a recipe has an empty name";
    for (std::size_t k = 0; k < i; ++k) {
      if (without_spaces(all_[k].name) == without_spaces(all_[i].name))
        return "tool::run: two recipes have the name " + all_[i].name +
               (all_[k].is_own ? "" : ", and one of them is shipped") +
               "; tessera::tool::named gives one another name";
    }
  }
  return {};
}

const replay::recipe_entry* replay::recipe_list::find(std::string_view name) const {
  const std::string wanted = without_spaces(name);
  const auto found = std::find_if(all_.begin(), all_.end(),
                                  [&](const recipe_entry& r) { return without_spaces(r.name) == wanted; });
  return found != all_.end() ? &*found : nullptr;
}

std::vector<std::string_view> replay::recipe_list::names() const {
  std::vector<std::string_view> names;
  for (const recipe_entry& r : all_) names.push_back(r.name);
  return names;
}

std::vector<std::string> replay::recipe_list::compared() const {
  std::vector<std::string> names;
  for (const recipe_entry* r : own()) names.push_back(r->name);
  for (const recipe_entry& r : all_) {
    if (r.is_compared && !r.is_own) names.push_back(r.name);
  }
  return names;
}

std::vector<const replay::recipe_entry*> replay::recipe_list::own() const {
  std::vector<const recipe_entry*> found;
  for (const recipe_entry& r : all_) {
    if (r.is_own) found.push_back(&r);
  }
  return found;
}

std::string replay::recipe_list::unknown(std::string_view name) const {
  if (find(name) != nullptr) return {};
  return std::string(name) + ": no such recipe; there are " + listed(names()) + did_you_mean(name, names());
}

replay::recipe_or_error replay::recipe_list::choose(const std::string& name, const std::string& conf,
                                                    const memory_limits& limits) const {
  const recipe_entry* const found = find(name);
  if (found == nullptr) return "--recipe " + unknown(name);
  return found->configure(*found, conf, limits);
}

std::string replay::recipe_list::full_name(std::string_view name) const {
  const recipe_entry* const found = find(name);
  return found != nullptr ? found->name : std::string(name);
}
