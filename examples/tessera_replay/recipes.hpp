// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include <tessera/config/grammar.hpp>
#include <tessera/config/parse.hpp>
#include <tessera/interop/memory_fraction.hpp>
#include <tessera/recipe/paddle.hpp>
#include <tessera/recipe/passthrough.hpp>
#include <tessera/recipe/pinned.hpp>
#include <tessera/recipe/power_of_two.hpp>
#include <tessera/recipe/pytorch_2_14.hpp>
#include <tessera/recipe/pytorch_family.hpp>
#include <tessera/recipe/recipe.hpp>
#include <tessera/recipe/stitched.hpp>
#include <tessera/recipe/torch_npu.hpp>
#include <tessera/recipe/with.hpp>

#include "commands.hpp"

/// The recipes that the command line can name.
namespace replay {

/// Reads a configuration string. Positions in errors do not count the characters of `before`.
template <typename Grammar>
[[nodiscard]] std::variant<typename Grammar::settings, std::string> read_conf(const std::string& before,
                                                                              const std::string& conf) {
  const std::string text = before + conf;
  auto parsed = tessera::config::parse<Grammar>(text);
  if (auto* const error = std::get_if<tessera::config::setting_error>(&parsed)) {
    error->offset -= before.size();
    return std::string(tessera::config::bad_setting("--conf", *error).what());
  }
  return std::get<typename Grammar::settings>(parsed);
}

/// Calls f.operator()<Recipe>(policies) with the family's recipe for the settings.
///   Returns:  the error text, or an empty one
template <typename Family, typename F>
[[nodiscard]] std::string choose_in(const std::string& before, const std::string& conf, F f) {
  const auto read = read_conf<typename Family::grammar>(before, conf);
  if (const auto* const wrong = std::get_if<std::string>(&read)) return *wrong;
  const auto& settings = std::get<typename Family::settings>(read);
  [&]<std::size_t... I>(std::index_sequence<I...>) {
    const auto call = [&]<typename Recipe>() { f.template operator()<Recipe>(Recipe::configured(settings)); };
    (void)((Family::index_for(settings) == I &&
            (call.template operator()<typename Family::template recipe_at<I>>(), true)) ||
           ...);
  }(std::make_index_sequence<Family::count>{});
  return {};
}

/// Calls f.operator()<Recipe>(policies) with the named recipe, under a configuration string and a memory
/// fraction.
///   Returns:  the error text, or an empty one
template <typename F>
[[nodiscard]] std::string choose_recipe(const std::string& name, const std::string& conf,
                                        std::optional<double> memory_fraction, F f) {
  const auto limited = [&]<typename Recipe>(tessera::recipe::policies<Recipe> chosen) {
    if (memory_fraction) (void)tessera::interop::set_memory_fraction(chosen, *memory_fraction);
    f.template operator()<Recipe>(chosen);
  };
  const auto in = [&]<typename Family>(const char* before) {
    return choose_in<Family>(before, conf, limited);
  };
  const auto plain = [&]<typename Recipe>() -> std::string {
    if (!conf.empty()) return "--conf: recipe " + name + " takes no settings";
    limited.template operator()<Recipe>({});
    return {};
  };
  using namespace tessera;
  if (name == "pytorch") return in.template operator()<recipe::pytorch_family>("");
  if (name == "pytorch_expandable")
    return in.template operator()<recipe::pytorch_family>("expandable_segments:True,");
  if (name == "pytorch_2_14") return in.template operator()<recipe::pytorch_2_14_family>("");
  if (name == "pytorch_2_14_expandable")
    return in.template operator()<recipe::pytorch_2_14_family>("expandable_segments:True,");
  if (name == "cuda_async") return in.template operator()<recipe::pytorch_family>("backend:cudaMallocAsync,");
  if (name == "torch_npu") return in.template operator()<recipe::torch_npu_family>("");
  if (name == "torch_npu_expandable")
    return in.template operator()<recipe::torch_npu_family>("expandable_segments:True,");
  if (name == "paddle" || name == "paddle_auto_growth")
    return in.template operator()<recipe::paddle_family>("");
  if (name == "paddle_naive_best_fit")
    return in.template operator()<recipe::paddle_family>("FLAGS_allocator_strategy=naive_best_fit,");
  if (name == "pinned") return in.template operator()<recipe::torch_npu_family::pinned_family>("");
  if (name == "pinned_2_14") return in.template operator()<recipe::pytorch_2_14_family::pinned_family>("");
  if (name == "pinned_expandable")
    return in.template operator()<recipe::torch_npu_family::pinned_family>(
        "pin_memory_expandable_segments:True,");
  if (name == "pinned_packed") return plain.template operator()<recipe::pinned_packed>();
  if (name == "stitched") return plain.template operator()<recipe::stitched>();
  if (name == "stitched_calmly")
    return plain
        .template operator()<recipe::with<recipe::stitched, policy::grow_by_stitching<std::size_t{32}>>>();
  if (name == "power_of_two") return plain.template operator()<recipe::power_of_two>();
  if (name == "passthrough") return plain.template operator()<recipe::passthrough>();
  return "--recipe " + unknown_recipe(name);
}

/// The recipes that compare shows, in order.
inline constexpr const char* compared[] = {"pytorch",
                                           "pytorch_expandable",
                                           "cuda_async",
                                           "torch_npu",
                                           "torch_npu_expandable",
                                           "paddle_auto_growth",
                                           "paddle_naive_best_fit",
                                           "stitched",
                                           "stitched_calmly",
                                           "power_of_two",
                                           "passthrough"};

}  // namespace replay
