// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/core/growth_way.hpp>
#include <tessera/provider/provider.hpp>

namespace tessera {

/// Whether a provider has all that a recipe needs.
template <typename Provider, typename Recipe>
concept provider_for = (!Recipe::streams::uses_events || event_provider<Provider>) &&
                       (!Recipe::streams::crosses || ordering_provider<Provider>) &&
                       (!Recipe::pages::uses_page_kinds || paged_provider<Provider>) &&
                       (Recipe::growth::way == growth_way::segments || virtual_memory_provider<Provider>);

/// Says in one sentence each what a recipe needs of a provider that it does not have, and where to read what that is.
template <typename Recipe, typename Provider>
consteval bool check_provider() {
  static_assert(!Recipe::streams::uses_events || event_provider<Provider>,
                "Provider must be an event_provider for Recipe::streams [tessera/provider/provider.hpp]");
  static_assert(!Recipe::streams::crosses || ordering_provider<Provider>,
                "Provider must be an ordering_provider for Recipe::streams [tessera/provider/provider.hpp]");
  static_assert(!Recipe::pages::uses_page_kinds || paged_provider<Provider>,
                "Provider must be a paged_provider for Recipe::pages [tessera/provider/provider.hpp]");
  static_assert(
      Recipe::growth::way == growth_way::segments || virtual_memory_provider<Provider>,
      "Provider must be a virtual_memory_provider for Recipe::growth [tessera/provider/provider.hpp]");
  return provider_for<Provider, Recipe>;
}

}  // namespace tessera
