// SPDX-License-Identifier: Apache-2.0
// Helpers for the tests of memory shared between processes.
#pragma once

#include <cstddef>

#include <tessera/provider/host_pinned.hpp>

namespace sharing_tests {

using namespace tessera::literals;
using physical = tessera::provider::host_pinned::physical;
using shareable = tessera::provider::host_pinned::shareable;

constexpr tessera::provider::host_pinned::options loose{
    .capacity = 64_MiB, .pin = tessera::provider::host_pinned::pinning::never};
constexpr std::size_t size = 1_MiB;

inline std::byte* map_somewhere(tessera::provider::host_pinned& device, const physical& memory) {
  auto* const p = static_cast<std::byte*>(device.reserve(size, size));
  return p != nullptr && device.map(p, size, memory) ? p : nullptr;
}

}  // namespace sharing_tests
