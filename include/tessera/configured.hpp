// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <optional>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>

#include <tessera/caching_allocator.hpp>
#include <tessera/config/environment.hpp>
#include <tessera/config/grammar.hpp>
#include <tessera/core/allocator_event.hpp>
#include <tessera/core/error.hpp>
#include <tessera/core/fatal.hpp>
#include <tessera/detail/by_visit.hpp>
#include <tessera/detail/reach.hpp>
#include <tessera/fwd.hpp>
#include <tessera/provider/provider.hpp>
#include <tessera/recipe/family.hpp>
#include <tessera/recipe/recipe.hpp>

namespace tessera {

/// Says that one thread at a time uses an allocator; adaptor/locked.hpp and adaptor/per_stream.hpp have others to say.
struct in_one_thread {
  template <typename Recipe, device_provider Provider, event_observer Observer, typename Counting>
  using allocator = caching_allocator<Recipe, Provider, Observer, Counting>;
};

/// The allocator of one recipe of a family. A `Front` that says so reads more from the settings than the recipe does.
template <typename Recipe, typename Front, typename Pool>
struct chosen_front {
  using recipe = Recipe;
  Pool pool;
  chosen_front(auto device, const auto& chosen, auto observer)
      : pool(std::move(device), Recipe::configured(chosen), std::move(observer)) {}
  chosen_front(auto device, const auto& chosen, auto observer)
    requires requires { Front::configured(chosen); }
      : pool(std::move(device), Recipe::configured(chosen), std::move(observer), Front::configured(chosen)) {}
};
/// Stands for a recipe that the provider has not what it needs for.
template <std::size_t>
struct no_front {};

template <std::size_t At, typename Family, device_provider Provider, typename Front, event_observer Observer,
          typename Counting>
struct front_at {
  using type = no_front<At>;
};
template <std::size_t At, typename Family, device_provider Provider, typename Front, event_observer Observer,
          typename Counting>
  requires provider_for<Provider, typename Family::template recipe_at<At>>
struct front_at<At, Family, Provider, Front, Observer, Counting> {
  using recipe = typename Family::template recipe_at<At>;
  using type =
      chosen_front<recipe, Front, typename Front::template allocator<recipe, Provider, Observer, Counting>>;
};
template <typename Family, device_provider Provider, typename Front, event_observer Observer,
          typename Counting, std::size_t... At>
auto any_front(std::index_sequence<At...>)
    -> std::variant<std::monostate,
                    typename front_at<At, Family, Provider, Front, Observer, Counting>::type...>;

/// The first recipe that a provider has what it needs for.
template <typename Family, device_provider Provider, std::size_t... At>
consteval std::size_t first_served(std::index_sequence<At...>) {
  std::size_t index = 0;
  (void)((provider_for<Provider, typename Family::template recipe_at<At>> || (++index, false)) || ...);
  return index;
}

/// An allocator whose settings are read when the program runs, and choose its recipe in a family: the same decisions as
/// the `Front` of that recipe, for a branch at each call.
///
///     const tessera::config::torch_npu_settings said{.expandable_segments = true};
///     tessera::configured<tessera::torch_npu_family, tessera::simulated_device> tuned(said);
///     tuned.deallocate(tuned.allocate(5_MiB));
///     if (const auto refused = tuned.change("max_split_size_mb:128"))  // and not expandable_segments
///       std::printf("%.*s\n", static_cast<int>(refused->rule.size()), refused->rule.data());
template <typename Family, device_provider Provider, typename Front, event_observer Observer,
          typename Counting>
class configured : public by_visit<configured<Family, Provider, Front, Observer, Counting>> {
 public:
  using settings_type = typename Family::settings;
  using grammar = typename Family::grammar;

  ///   Throws:  config::bad_setting where the provider has not what the recipe needs
  explicit configured(const settings_type& chosen, Provider device = Provider{}, Observer observer = {})
      : settings_(chosen) {
    make(indices{}, device, observer);
  }
  configured(const configured&) = delete;
  configured& operator=(const configured&) = delete;

  [[nodiscard]] pool_statistics statistics() const noexcept
    requires Counting::keeps_statistics
  {
    return visit([](const auto& pool) { return pool.statistics().all; });
  }
  [[nodiscard]] const settings_type& settings() const noexcept { return settings_; }
  /// Takes other settings over, for all that is decided from now on, unless one of them differs that cannot change any
  /// more: it would choose another recipe, or no policy of this one reads it.
  ///   Requires:  settings that a text could say; one thread at a time to call it, whoever allocates meanwhile
  ///   Returns:   the error that names that key, and nothing has changed; or nothing
  [[nodiscard]] std::optional<config::setting_error> change(const settings_type& wanted) noexcept {
    return visit_front([&](auto& in) { return change_in(in, wanted); });
  }
  /// The same for a text; what it does not name is at its default then, as in PyTorch.
  [[nodiscard]] std::optional<config::setting_error> change(std::string_view text) noexcept {
    const auto parsed = config::parse<grammar>(text);
    if (const auto* const error = std::get_if<config::setting_error>(&parsed)) return *error;
    return change(std::get<settings_type>(parsed));
  }

  /// Calls f with the allocator that was chosen; f must return the same type for each.
  template <typename F>
  decltype(auto) visit(F f) {
    return visit_front([&f](auto& in) -> decltype(auto) { return f(in.pool); });
  }
  template <typename F>
  decltype(auto) visit(F f) const {
    return const_cast<configured&>(*this).visit_front(
        [&f](const auto& in) -> decltype(auto) { return f(in.pool); });
  }

 private:
  using indices = std::make_index_sequence<Family::count>;
  using any = decltype(any_front<Family, Provider, Front, Observer, Counting>(indices{}));
  static constexpr std::size_t first = first_served<Family, Provider>(indices{});
  static_assert(first < Family::count, "configured: the provider serves no recipe of the family");

  /// Out of line, as g++ else warns of what allocators that are not chosen have not initialized.
  template <std::size_t... At>
  [[gnu::noinline]] void make(std::index_sequence<At...>, Provider& device, Observer& observer) {
    const std::size_t wanted = Family::index_for(settings_);
    (void)((wanted == At && (make_one<At>(device, observer), true)) || ...);
  }
  template <std::size_t At>
  void make_one(Provider& device, Observer& observer) {
    using recipe = typename Family::template recipe_at<At>;
    if constexpr (provider_for<Provider, recipe>) {
      pool_.template emplace<At + 1>(std::move(device), settings_, std::move(observer));
    } else {
      raise(config::bad_setting(grammar::name, {{},
                                                {},
                                                "it has not what these settings need",
                                                0,
                                                config::error_code::excluded_by,
                                                "the provider"}));
    }
  }

  template <typename F>
  decltype(auto) visit_front(F f) {
    using result = decltype(f(std::get<first + 1>(pool_)));
    return std::visit(
        [&f](auto& in) -> result {
          if constexpr (requires { in.pool; }) {
            return f(in);
          } else {
            fatal("configured: there is no allocator");
          }
        },
        pool_);
  }

  template <typename Chosen>
  std::optional<config::setting_error> change_in(Chosen& in, const settings_type& wanted) noexcept {
    using recipe = typename Chosen::recipe;
    const std::size_t index = Family::index_for(settings_);
    const bool same_recipe = Family::index_for(wanted) == index;
    std::optional<config::setting_error> refused;
    for (const auto& key : grammar::keys) {
      settings_type with_it = settings_;
      settings_type without = wanted;
      if (refused || !config::detail::swap_setting(key, with_it, without)) continue;
      if (Family::index_for(with_it) != index) {
        refused = {{key.name, {}, "chooses another recipe, so it cannot change any more"}};
      } else if (same_recipe && recipe::configured(with_it) == recipe::configured(settings_) &&
                 (Family::index_for(without) != index ||
                  recipe::configured(without) == recipe::configured(wanted))) {
        refused = {
            {key.name, {}, "is read by no policy of this allocator's recipe, so it cannot change any more"}};
      }
    }
    if (refused || !same_recipe) return refused;
    for_each_settings(in.pool, [&](auto& chosen) { chosen = recipe::configured(wanted); });
    settings_ = wanted;
    return {};
  }

  settings_type settings_;
  any pool_;
};

/// What a family's settings are in an environment variable; without a name, in those that its system reads. What is not
/// set is at its default.
///   Throws:  config::bad_setting where a setting is refused
template <typename Family, std::same_as<const char*>... Variable>
  requires(sizeof...(Variable) <= 1)
[[nodiscard]] typename Family::settings settings_from_environment(Variable... variable) {
  const auto read = config::read_environment<typename Family::grammar>(variable...);
  if (const auto* const error = std::get_if<config::setting_error>(&read)) {
    const std::string_view names[] = {variable..., Family::grammar::name};
    raise(config::bad_setting(names[0], *error));
  }
  return std::get<typename Family::settings>(read);
}

/// An allocator of a family under them, as in
/// from_environment<torch_npu_family, simulated_device>("PYTORCH_NPU_ALLOC_CONF").
///
///     #include <tessera/concurrent/locked.hpp>
///     using namespace tessera;
///     auto shared = from_environment<pytorch_family, simulated_device, in_threads>();  // PYTORCH_CUDA_ALLOC_CONF
///     shared.deallocate(shared.allocate(5_MiB));
///
///   Throws:  config::bad_setting where a setting is refused
template <typename Family, device_provider Provider, typename Front = in_one_thread>
[[nodiscard]] configured<Family, Provider, Front> from_environment(const char* variable,
                                                                   Provider device = Provider{}) {
  return configured<Family, Provider, Front>(settings_from_environment<Family>(variable), std::move(device));
}
template <typename Family, device_provider Provider, typename Front = in_one_thread>
[[nodiscard]] configured<Family, Provider, Front> from_environment(Provider device = Provider{}) {
  return configured<Family, Provider, Front>(settings_from_environment<Family>(), std::move(device));
}

}  // namespace tessera
