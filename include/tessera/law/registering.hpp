// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <new>

#include <tessera/core/bytes.hpp>
#include <tessera/law/verdict.hpp>
#include <tessera/provider/provider.hpp>

namespace tessera::law {

/// What a registering_provider must mean, tried with 128 KiB of the host's memory.
template <registering_provider D>
[[nodiscard]] verdict registering(D& device) {
  constexpr std::size_t page = 64_KiB;  // a multiple of the page of every host
  constexpr std::align_val_t aligned{page};
  auto* const p = static_cast<std::byte*>(::operator new(2 * page, aligned, std::nothrow));
  if (p == nullptr) return {};
  verdict found;
  for (int round = 0; round < 2 && found; ++round) {
    const bool registered = device.register_memory(p, 2 * page);
    found.require(registered, round == 0 ? "the user's memory can be registered"
                                         : "what was unregistered can be registered again");
    if (!registered) break;
    found.require(!device.register_memory(p, 2 * page) && !device.register_memory(p + page, page),
                  "memory is registered once");
    found.require(!device.unregister_memory(p + page), "memory is unregistered where it begins");
    found.require(device.unregister_memory(p), "unregister ends what register did");
    found.require(!device.unregister_memory(p), "memory is unregistered once");
  }
  if (found && device.register_memory(p + min_alignment, page)) {
    found = {"what is registered begins at a multiple of the page"};
    (void)device.unregister_memory(p + min_alignment);
  }
  ::operator delete(p, aligned);
  return found;
}

}  // namespace tessera::law
