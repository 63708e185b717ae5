// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <concepts>
#include <initializer_list>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <variant>

#include <tessera/allocator_adaptor.hpp>
#include <tessera/config/grammar.hpp>
#include <tessera/config/parse.hpp>
#include <tessera/fwd.hpp>
#include <tessera/law/growth_bound.hpp>
#include <tessera/recipe/family.hpp>
#include <tessera/recipe/recipe.hpp>

namespace tessera::inline v0_1::detail {

/// Holds the allocator of one recipe of a family. A front end with options reads them from the same settings.
template <typename Recipe, typename Allocator>
struct recipe_holder {
  using recipe = Recipe;
  Allocator allocator;
  template <typename... Given>
  recipe_holder(auto device, const auto& settings, Given&&... given)
      : allocator(std::move(device), Recipe::configured(settings), std::forward<Given>(given)...) {}
  template <typename... Given>
  recipe_holder(auto device, const auto& settings, Given&&... given)
    requires requires { Allocator::options_from(settings); }
      : allocator(std::move(device), Recipe::configured(settings), Allocator::options_from(settings),
                  std::forward<Given>(given)...) {}
};
template <typename Holder>
inline constexpr bool holds_ranges = false;
template <typename Recipe, typename Allocator>
inline constexpr bool holds_ranges<recipe_holder<Recipe, Allocator>> = Allocator::has_ranges;

/// The variant of the allocators of a family. It has std::monostate for a recipe that the provider does not
/// support.
template <typename Family, typename Allocator>
struct family_allocators {
  template <std::size_t Index, typename Recipe = typename Family::template recipe_at<Index>>
  struct alternative {
    using type = std::monostate;
  };
  template <std::size_t Index, typename Recipe>
    requires recipe::provider_for<typename Allocator::provider_type, Recipe>
  struct alternative<Index, Recipe> {
    using type = recipe_holder<Recipe, typename Allocator::template rebind_recipe<Recipe>>;
  };
  template <std::size_t... Index>
  static auto any_of(std::index_sequence<Index...>)
      -> std::variant<std::monostate, typename alternative<Index>::type...>;
};

/// The index of the first alternative of a variant that holds an allocator; 0 if there is none.
template <typename Variant, std::size_t Index = 1>
consteval std::size_t first_allocator() {
  if constexpr (Index == std::variant_size_v<Variant>) {
    return 0;
  } else if constexpr (std::is_same_v<std::variant_alternative_t<Index, Variant>, std::monostate>) {
    return first_allocator<Variant, Index + 1>();
  } else {
    return Index;
  }
}

template <typename Holder>
inline constexpr std::size_t pools_of = 0;
template <typename Recipe, typename Allocator>
inline constexpr std::size_t pools_of<recipe_holder<Recipe, Allocator>> = Recipe::pools::count;
/// The most pools that an allocator of a variant has.
template <typename Variant>
inline constexpr std::size_t most_pools = 0;
template <typename... Holder>
inline constexpr std::size_t most_pools<std::variant<Holder...>> = (std::max)({pools_of<Holder>...});

/// Statistics with further pools, which are empty.
template <std::size_t Pools, std::size_t Own>
[[nodiscard]] statistics<Pools> with_pools(const statistics<Own>& from) noexcept {
  statistics<Pools> result{from, from.all, {}, from.max_split_size};
  std::copy(from.pool.begin(), from.pool.end(), result.pool.begin());
  return result;
}

/// Whether any allocator of a variant maps memory into ranges.
template <typename Variant>
inline constexpr bool any_has_ranges = false;
template <typename... Holder>
inline constexpr bool any_has_ranges<std::variant<Holder...>> = (holds_ranges<Holder> || ...);

/// Assigns the policies that differ between `from` and `to`. The memory limit stays unless it differs, too.
template <typename Policies>
void assign_changes(Policies& now, const Policies& from, const Policies& to) noexcept {
  const auto assign = [](auto& in, const auto& before, const auto& after) {
    if (before != after) in = after;
  };
  const auto limit = now.growth.limit;
  assign(now.rounding, from.rounding, to.rounding);
  assign(now.pools, from.pools, to.pools);
  assign(now.streams, from.streams, to.streams);
  assign(now.split, from.split, to.split);
  assign(now.pages, from.pages, to.pages);
  assign(now.growth, from.growth, to.growth);
  assign(now.eviction, from.eviction, to.eviction);
  assign(now.recovery, from.recovery, to.recovery);
  if constexpr (requires { now.growth.limit = limit; }) {
    if (from.growth.limit == to.growth.limit) now.growth.limit = limit;
  }
}

template <typename Allocator>
concept keeps_statistics = requires(const Allocator& in) { in.statistics(); };

/// The variant that holds the allocator of `configured`.
template <typename Family, typename Allocator>
using any_of_family =
    decltype(family_allocators<Family, Allocator>::any_of(std::make_index_sequence<Family::count>{}));

/// Calls f(holder) with the active alternative of a variant. A holder contains an `allocator`.
template <typename Variant, typename F>
decltype(auto) visit_holder(Variant& holders, F f) {
  constexpr std::size_t first = first_allocator<std::remove_const_t<Variant>>();
  using result = decltype(f(std::declval<std::variant_alternative_t<first, Variant>&>()));
  return std::visit(
      [&f](auto& in) -> result {
        if constexpr (requires { in.allocator; }) {
          return f(in);
        } else {
          fatal("configured: there is no allocator");
        }
      },
      holders);
}

/// Reads a family's settings from an environment variable. Without a name, it reads the variables of the
/// original system. Absent settings have their defaults.
///   Throws:  config::bad_setting if a setting is refused
template <typename Family, std::same_as<const char*>... Variable>
  requires(sizeof...(Variable) <= 1)
[[nodiscard]] typename Family::settings settings_from_environment(Variable... variable) {
  const auto read = config::read_environment<typename Family::grammar>(variable...);
  if (const auto* const error = std::get_if<config::setting_error>(&read)) {
    std::string_view source = Family::grammar::name;  // if each key is a variable, the error names it
    for (const char* const each : Family::grammar::variables) {
      if (std::getenv(each) == nullptr) continue;
      source = each;
      break;
    }
    const std::string_view names[] = {variable..., source};
    config::setting_error why = *error;
    if (Family::grammar::variables.empty()) why.offset = config::setting_error::nowhere;
    raise(config::bad_setting(names[0], why));
  }
  return std::get<typename Family::settings>(read);
}

}  // namespace tessera::inline v0_1::detail

namespace tessera::inline v0_1 {

/// An allocator whose settings are read at run time. The settings choose a recipe in a family. Its decisions
/// equal the decisions of that recipe's allocator.
///
/// Choose it if users configure the allocator by an environment variable or a file. `Allocator` is a caching_allocator or
/// a front end of one, such as locked or per_stream. Its recipe, which may be any of the family, is replaced.
///
///     using npu_allocator = tessera::caching_allocator<tessera::recipe::torch_npu<>, tessera::provider::simulated_device>;
///     const tessera::config::torch_npu::settings settings{.expandable_segments = true};
///     tessera::configured<tessera::recipe::torch_npu_family, npu_allocator> tuned(settings);
///     tuned.deallocate(tuned.allocate(5_MiB));
///     if (const auto refused = tuned.change("max_split_size_mb:128"))  // without expandable_segments
///       std::printf("%.*s\n", static_cast<int>(refused->rule.size()), refused->rule.data());
///
/// It offers the extensions of `Allocator`. If the settings choose a recipe without ranges, calls of extensions that need
/// ranges say so.
///
///   Cost:  a branch at each call
template <typename Family, typename Allocator>
class configured : public allocator_adaptor<configured<Family, Allocator>> {
  using adaptor_type = allocator_adaptor<configured>;

 public:
  using provider_type = typename Allocator::provider_type;

 private:
  using any = detail::any_of_family<Family, Allocator>;
  static_assert(detail::first_allocator<any>() != 0,
                "configured: the provider supports no recipe of the family");
  using first = decltype(std::variant_alternative_t<detail::first_allocator<any>(), any>::allocator);

 public:
  template <typename Other>
  using rebind_provider = configured<Family, typename Allocator::template rebind_provider<Other>>;
  /// The settings of the family's system, such as config::pytorch::settings.
  using settings_type = typename Family::settings;
  /// The grammar of the configuration strings, such as config::pytorch.
  using grammar = typename Family::grammar;
  static constexpr bool has_ranges = detail::any_has_ranges<any>;
  template <typename E>
  using refused = typename first::template refused<E>;
  template <typename E>
  static constexpr bool has = first::template has<E>;

  /// Each of `given` is an extension of the allocator; the others are made by default.
  ///   Requires:  settings that a configuration text can express
  ///   Throws:  config::bad_setting if the provider does not support the recipe
  template <typename... Given>
  explicit configured(const settings_type& settings, provider_type device = provider_type{}, Given&&... given)
      : settings_(settings) {
    make(indices{}, device, std::forward<Given>(given)...);
  }
  /// Reads the settings from an environment variable. Without its name, it reads the variables of the
  /// original system, such as PYTORCH_CUDA_ALLOC_CONF. Absent settings have their defaults.
  ///
  ///     #include <tessera/concurrent/locked.hpp>
  ///     using locked_pool = tessera::concurrent::locked<tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device>>;
  ///     auto shared = tessera::configured<tessera::recipe::pytorch_family, locked_pool>::from_environment();
  ///     shared.deallocate(shared.allocate(5_MiB));
  ///
  ///   Throws:  config::bad_setting if a setting is refused, or as the constructor
  template <typename... Given>
  [[nodiscard]] static configured from_environment(const char* variable,
                                                   provider_type device = provider_type{}, Given&&... given) {
    return configured(detail::settings_from_environment<Family>(variable), std::move(device),
                      std::forward<Given>(given)...);
  }
  template <typename... Given>
  [[nodiscard]] static configured from_environment(provider_type device = provider_type{}, Given&&... given) {
    return configured(detail::settings_from_environment<Family>(), std::move(device),
                      std::forward<Given>(given)...);
  }
  configured& operator=(configured&&) = delete;

  /// The statistics of the chosen allocator. If its recipe has fewer pools than another one of the family, further pools
  /// are empty.
  [[nodiscard]] tessera::statistics<detail::most_pools<any>> statistics() const noexcept
    requires detail::keeps_statistics<first>
  {
    return visit([](const auto& allocator) {
      return detail::with_pools<detail::most_pools<any>>(allocator.statistics());
    });
  }
  void reset_peak_statistics() noexcept
    requires detail::keeps_statistics<first>
  {
    visit([](auto& allocator) { allocator.reset_peak_statistics(); });
  }
  void reset_accumulated_statistics() noexcept
    requires detail::keeps_statistics<first>
  {
    visit([](auto& allocator) { allocator.reset_accumulated_statistics(); });
  }
  /// The settings in force: those of the constructor, or of the last change() that worked.
  [[nodiscard]] const settings_type& settings() const noexcept { return settings_; }
  /// Replaces the settings for all later decisions. A policy whose settings do not change stays as it is, with the numbers
  /// that the program gave it at run time, and so does the memory limit. Refuses a change that would choose another recipe.
  /// Also refuses a setting that no policy of this recipe reads.
  ///   Requires:  settings that a configuration text can express
  ///   Requires:  only one thread calls this; other threads may allocate meanwhile if the front end allows
  ///              that
  ///   Returns:   nothing, or the error, which names the refused key and has no position; then nothing has
  ///              changed
  [[nodiscard]] std::optional<config::setting_error> change(const settings_type& wanted) noexcept {
    return change(settings_, wanted);
  }
  /// The error of a change, if it was refused; otherwise the settings that it set back.
  struct change_result : std::optional<config::setting_error> {
    /// The keys of settings that the text does not name, and that had another value than their default.
    [[nodiscard]] std::span<const std::string_view> set_back() const noexcept { return {keys.data(), count}; }
    std::array<std::string_view, grammar::keys.size()> keys{};  ///< the first `count` are set_back()
    std::size_t count = 0;                                      ///< how many keys were set back
  };
  /// Replaces the settings by those in a text. Settings that it does not name return to their defaults, as in PyTorch; the
  /// result names them. A memory limit set at run time stays unless the text names a limit. The texts of the error lie in
  /// `text`, so it must outlive the error.
  [[nodiscard]] change_result change(std::string_view text) noexcept {
    const auto parsed = config::parse<grammar>(text);
    if (const auto* const error = std::get_if<config::setting_error>(&parsed)) return {*error};
    const auto& wanted = std::get<settings_type>(parsed);
    const settings_type old = settings_;
    change_result result{change(before(text, wanted), wanted)};
    for (const auto& key : grammar::keys) {
      const bool is_back = key.is_equal(wanted, settings_type{}) && !key.is_equal(old, wanted);
      if (!result && is_back && !config::detail::sets_key<grammar>(text, key.name))
        result.keys[result.count++] = key.name;
    }
    return result;
  }

  /// Returns the first setting that differs from its default although nothing in this allocator reads it. Call it once the
  /// settings are read, and warn with config::bad_setting. `readers` are other parts of the program that read settings, by
  /// the name before the colon in the table of keys.
  ///
  ///     using plain = tessera::caching_allocator<tessera::recipe::paddle<>, tessera::provider::simulated_device>;
  ///     const tessera::configured<tessera::recipe::paddle_family, plain> tuned({.retry_milliseconds = 200});
  ///     if (const auto unread = tuned.setting_without_effect())  // paddle: ...: read by waiting: ...
  ///       std::puts(tessera::config::bad_setting("paddle", *unread).what());
  ///     if (tuned.setting_without_effect({"waiting"})) return;  // nothing, if the program waits for so long
  [[nodiscard]] std::optional<config::setting_error> setting_without_effect(
      std::initializer_list<std::string_view> readers = {}) const noexcept {
    for (const auto& key : grammar::keys) {
      if (!Family::has_no_effect(key, settings_)) continue;
      if (std::find(readers.begin(), readers.end(), key.reader()) != readers.end()) continue;
      if constexpr (requires { first::options_from(settings_); }) {  // a front end reads settings, too
        settings_type without = settings_, defaults{};
        key.swap(without, defaults);
        if (first::options_from(without) != first::options_from(settings_)) continue;
      }
      return key.unread();
    }
    return {};
  }

  /// Searches a program that makes the recipe with these settings reserve without bound. Call it once the settings
  /// are read, and show its words.
  ///
  ///     using plain = tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device>;
  ///     using tuned_type = tessera::configured<tessera::recipe::pytorch_family, plain>;
  ///     const tuned_type tuned({.max_split_size = 128_MiB, .expandable_segments = true});
  ///     const tessera::law::growth_witness found = tuned.growth_is_bounded();
  ///     if (!found) std::printf("warning: %s\n", found.text().c_str());
  ///
  ///   Returns:  as law::growth_is_bounded [tessera/law/growth_bound.hpp]
  ///   Cost:     about 10 ms if the split policy refuses blocks
  [[nodiscard]] law::growth_witness growth_is_bounded() const noexcept {
    return detail::visit_holder(any_, [this](const auto& holder) {
      using recipe = typename std::remove_cvref_t<decltype(holder)>::recipe;
      return law::growth_is_bounded<recipe>(recipe::configured(settings_));
    });
  }

  /// Calls f(allocator) with the chosen allocator. `f` must return the same type for every recipe.
  template <typename F>
  decltype(auto) visit(F f) {
    return enter(*this, f);
  }
  template <typename F>
  decltype(auto) visit(F f) const {
    return enter(*this, f);
  }
  template <typename Note>
  void note_change(const Note& note) {
    visit([&note](auto& in) { in.note_change(note); });
  }

 private:
  friend adaptor_type;
  template <typename Me, typename F>
  static decltype(auto) enter(Me& me, F&& f) {
    return detail::visit_holder(me.any_, [&f](auto& in) -> decltype(auto) { return f(in.allocator); });
  }

  using indices = std::make_index_sequence<Family::count>;

  // Not inlined: g++ would warn that the allocators of other recipes are not initialized.
  template <std::size_t... Index, typename... Given>
  [[gnu::noinline]] void make(std::index_sequence<Index...>, provider_type& device, Given&&... given) {
    const std::size_t wanted = Family::index_for(settings_);
    (void)((wanted == Index && make_one<Index>(device, std::forward<Given>(given)...)) || ...);
  }
  template <std::size_t Index, typename... Given>
  bool make_one(provider_type& device, Given&&... given) {
    if constexpr (recipe::provider_for<provider_type, typename Family::template recipe_at<Index>>) {
      any_.template emplace<Index + 1>(std::move(device), settings_, std::forward<Given>(given)...);
    } else {
      const config::setting_error error{{},
                                        {},
                                        "it does not support these settings",
                                        config::setting_error::nowhere,
                                        config::setting_error::error_code::excluded_by,
                                        "the provider"};
      detail::raise(config::bad_setting(grammar::name, error));
    }
    return true;
  }

  [[nodiscard]] static config::setting_error not_changeable(std::string_view key,
                                                            std::string_view rule) noexcept {
    using error = config::setting_error;
    return {key, {}, rule, error::nowhere, error::error_code::not_changeable};
  }
  /// The current settings, with another value for each setting that a text names, so that it counts as changed.
  [[nodiscard]] settings_type before(std::string_view text, const settings_type& wanted) const noexcept {
    settings_type from = settings_;
    for (const auto& key : grammar::keys) {
      settings_type other = from;
      if (!config::detail::sets_key<grammar>(text, key.name)) continue;
      key.member.visit([&](auto member) {
        auto& value = other.*member;
        if (value != wanted.*member) return;
        if constexpr (std::is_same_v<decltype(value), bool&>) {
          value = !value;
        } else if constexpr (std::is_same_v<decltype(value), fraction&>) {
          value = value == percent(100) ? fraction{} : percent(100);
        } else {
          value = settings_type{}.*member;
        }
      });
      if (Family::index_for(other) == Family::index_for(settings_)) from = other;
    }
    return from;
  }
  std::optional<config::setting_error> change(const settings_type& from,
                                              const settings_type& wanted) noexcept {
    return detail::visit_holder(any_, [&](auto& in) { return change_in(in, from, wanted); });
  }
  template <typename Holder>
  std::optional<config::setting_error> change_in(Holder& in, const settings_type& from,
                                                 const settings_type& wanted) noexcept {
    using recipe = typename Holder::recipe;
    const std::size_t index = Family::index_for(settings_);
    const bool same_recipe = Family::index_for(wanted) == index;
    std::optional<config::setting_error> wrong;
    for (const auto& key : grammar::keys) {
      settings_type with_it = settings_;
      settings_type without = wanted;
      if (wrong || key.is_equal(settings_, wanted)) continue;
      key.swap(with_it, without);
      if (Family::index_for(with_it) != index) {
        wrong = not_changeable(key.name, "chooses another recipe, so it cannot change any more");
      } else if (same_recipe && recipe::configured(with_it) == recipe::configured(settings_) &&
                 (Family::index_for(without) != index ||
                  recipe::configured(without) == recipe::configured(wanted))) {
        wrong = not_changeable(
            key.name, "is read by no policy of this allocator's recipe, so it cannot change any more");
      }
    }
    if (wrong || !same_recipe) return wrong;
    in.allocator.visit_policies([&](auto& policies) {
      detail::assign_changes(policies, recipe::configured(from), recipe::configured(wanted));
    });
    settings_ = wanted;
    return {};
  }

  settings_type settings_;
  any any_;
};

}  // namespace tessera::inline v0_1
