// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/law/provider_check_result.hpp>
#include <tessera/law/provider_contents.hpp>

namespace tessera::law {

/// Checks that the host can read and write the provider's memory. law::provider checks it, too. It uses four
/// times the granularity, and three pages of virtual memory. Linux.
///
///     #include <tessera/provider/host_pinned.hpp>
///     tessera::provider::host_pinned device({.pin = tessera::provider::host_pinned::pinning::never});
///     if (const auto found = tessera::law::host_visible(device); !found) std::puts(found.message());
template <provider::device_provider D>
  requires tessera::detail::is_host_visible<D>
[[nodiscard]] provider_check_result host_visible(D& device) {
  return detail::result_of([&](auto& found) { detail::contents(found, device, detail::host_access{}); });
}

}  // namespace tessera::law
