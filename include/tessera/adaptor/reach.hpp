// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

/// How to reach what an allocator is made of, whatever it guards that with.
namespace tessera {

/// Calls f with the provider of an allocator.
template <typename Allocator, typename F>
decltype(auto) with_device_of(Allocator& pool, F f) {
  if constexpr (requires { pool.with_device(f); }) {
    return pool.with_device(f);
  } else {
    return f(pool.device());
  }
}

/// Calls f with the settings of an allocator's policies; of a per_device, with those of each device.
template <typename Allocator, typename F>
void for_each_settings(Allocator& pool, F f) {
  if constexpr (requires { pool.devices(); }) {
    for (std::size_t device = 0; device < pool.devices(); ++device) for_each_settings(pool.front(device), f);
  } else if constexpr (requires { pool.visit([](auto&) {}); }) {
    pool.visit([&f](auto& chosen) { for_each_settings(chosen, f); });
  } else if constexpr (requires { pool.with_settings(f); }) {
    pool.with_settings(f);
  } else {
    f(pool.settings());
  }
}

}  // namespace tessera
