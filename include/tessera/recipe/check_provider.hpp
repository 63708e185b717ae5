// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/provider/provider.hpp>

namespace tessera::detail {

template <typename Provider, typename Recipe>
concept has_events_for = !Recipe::streams::uses_events || provider::event_provider<Provider>;

template <typename Provider, typename Recipe>
concept has_order_for = !Recipe::streams::reuses_across_streams || provider::ordering_provider<Provider>;

template <typename Provider, typename Recipe>
concept has_pages_for = !Recipe::pages::uses_page_kinds || provider::paged_provider<Provider>;

template <typename Provider, typename Recipe>
concept has_memory_for = !Recipe::growth::backend::has_ranges || provider::virtual_memory_provider<Provider>;

}  // namespace tessera::detail

namespace tessera::recipe {

/// Whether a provider has all capabilities that a recipe needs.
///
///     static_assert(tessera::recipe::provider_for<tessera::provider::simulated_device, tessera::recipe::stitched>);
template <typename Provider, typename Recipe>
concept provider_for = detail::has_events_for<Provider, Recipe> && detail::has_order_for<Provider, Recipe> &&
                       detail::has_pages_for<Provider, Recipe> && detail::has_memory_for<Provider, Recipe>;

}  // namespace tessera::recipe

namespace tessera::detail {

/// Stops the compiler, and names the capability that a recipe needs and the provider lacks.
template <typename Recipe, typename Provider>
consteval bool check_provider() {
  static_assert(has_events_for<Provider, Recipe>,
                "Provider must be an event_provider for Recipe::streams [tessera/provider/provider.hpp]");
  static_assert(has_order_for<Provider, Recipe>,
                "Provider must be an ordering_provider for Recipe::streams [tessera/provider/provider.hpp]");
  static_assert(has_pages_for<Provider, Recipe>,
                "Provider must be a paged_provider for Recipe::pages [tessera/provider/provider.hpp]");
  static_assert(
      has_memory_for<Provider, Recipe>,
      "Provider must be a virtual_memory_provider for Recipe::growth [tessera/provider/provider.hpp]");
  return recipe::provider_for<Provider, Recipe>;
}

}  // namespace tessera::detail
