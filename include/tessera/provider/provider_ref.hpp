// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/provider/adaptor.hpp>
#include <tessera/provider/capabilities.hpp>
#include <tessera/provider/provider.hpp>

namespace tessera::provider {

/// Refers to a provider that it does not own, so that several allocators share one device.
///
///     tessera::provider::simulated_device device;
///     using shared = tessera::provider::provider_ref<tessera::provider::simulated_device>;
///     tessera::caching_allocator<tessera::recipe::pytorch<>, shared> weights{shared(device)};
///     tessera::caching_allocator<tessera::recipe::stitched, shared> activations{shared(device)};
///
///   Requires:  the provider outlives the reference
template <device_provider Provider>
class provider_ref : public provider_adaptor<Provider> {
 public:
  static constexpr bool is_thread_safe = detail::is_thread_safe<Provider>;
  using provider_adaptor<Provider>::provider_adaptor;
};
template <device_provider Provider>
provider_ref(Provider&) -> provider_ref<Provider>;

}  // namespace tessera::provider
