// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/provider/forwarding.hpp>
#include <tessera/provider/provider.hpp>

namespace tessera {

/// Refers to a provider that somebody else owns, so that several allocators share one device.
///
///     tessera::simulated_device device;
///     using shared = tessera::provider_ref<tessera::simulated_device>;
///     tessera::caching_allocator<tessera::pytorch<>, shared> weights{shared(device)};
///     tessera::caching_allocator<tessera::stitched, shared> activations{shared(device)};
///
///   Requires:  the provider outlives the reference
template <device_provider Provider>
class provider_ref : public forwarding<Provider> {
 public:
  static constexpr bool is_thread_safe = tessera::is_thread_safe<Provider>;
  using forwarding<Provider>::forwarding;
};
template <device_provider Provider>
provider_ref(Provider&) -> provider_ref<Provider>;

}  // namespace tessera
