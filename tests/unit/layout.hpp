// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include <tessera/concurrent/locked.hpp>
#include <tessera/concurrent/per_stream.hpp>
#include <tessera/extension/observer.hpp>
#include <tessera/observe/history.hpp>
#include <tessera/observe/snapshot.hpp>
#include <tessera/provider/host_pinned.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/recipe/pinned.hpp>
#include <tessera/tessera.hpp>

template <typename... Types>
[[nodiscard]] constexpr std::size_t layout_of() {
  std::size_t sum = 0;
  ((sum = (sum * 31 + sizeof(Types)) * 31 + alignof(Types)), ...);
  return sum;
}
/// A number that depends on the layout of the types that libraries exchange. It differs between standards if
/// a layout differs.
[[nodiscard]] constexpr std::size_t layout() {
  return layout_of<
      tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device>,
      tessera::concurrent::locked<
          tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device>>,
      tessera::concurrent::locked<
          tessera::caching_allocator<tessera::recipe::pinned_packed, tessera::provider::host_pinned,
                                     tessera::extension::observer<tessera::observe::history<>>>>,
      tessera::concurrent::per_stream<tessera::caching_allocator<tessera::recipe::pytorch_family::expandable,
                                                                 tessera::provider::simulated_device>>,
      tessera::out_of_memory, tessera::detail::oom_numbers, tessera::allocator_event, tessera::stream_id,
      tessera::observe::snapshot>();
}
