// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <type_traits>
#include <utility>

#include <tessera/detail/owner.hpp>

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

/// A function that gives what it is given.
struct itself {
  template <typename T>
  T& operator()(T& given) const noexcept {
    return given;
  }
};
/// The provider that with_device_of reaches.
template <typename Allocator>
using device_of = std::remove_reference_t<decltype(with_device_of(std::declval<Allocator&>(), itself{}))>;

/// Calls f(front, device number) for each allocator that one chooses among or consists of, such as those of a per_device
/// and the one that a configured has chosen.
template <typename Allocator, typename F>
void for_each_front(Allocator& pool, F f, std::size_t device = 0) {
  if constexpr (requires { pool.devices(); }) {
    for (std::size_t d = 0; d < pool.devices(); ++d) for_each_front(pool.front(d), f, d);
  } else if constexpr (chosen_when_run<Allocator>) {
    pool.visit([&](auto& chosen) { for_each_front(chosen, f, device); });
  } else if constexpr (requires { pool.pool(); }) {
    f(pool.pool(), device);
  } else {
    f(pool, device);
  }
}

/// Calls f with the settings of an allocator's policies; of a per_device, with those of each device.
template <typename Allocator, typename F>
void for_each_settings(Allocator& pool, F f) {
  for_each_front(pool, [&f](auto& front, std::size_t) {
    if constexpr (requires { front.with_settings(f); }) {
      front.with_settings(f);
    } else {
      f(front.settings());
    }
  });
}

/// Calls f(allocator, device number) for each caching_allocator that an allocator is made of, with its mutex held where it
/// has one; f must not use the allocator.
///
///     #include <tessera/concurrent/per_stream.hpp>
///     #include <tessera/observe/inspect.hpp>
///     tessera::per_stream<tessera::pytorch<>, tessera::simulated_device> shared;
///     shared.deallocate(shared.allocate(5_MiB));
///     std::size_t pinned = 0;
///     tessera::for_each_allocator(shared, [&](auto& one, std::size_t) { pinned += tessera::pinned_bytes(one); });
template <typename Allocator, typename F>
void for_each_allocator(Allocator& pool, F f) {
  for_each_front(pool, [&f](auto& front, std::size_t device) {
    const auto one = [&f, device](auto& inner) { f(inner, device); };
    if constexpr (requires { front.enter_each(one); }) {
      front.enter_each(one);
    } else {
      one(front);
    }
  });
}

/// Calls f(sink, device number) with the sink of an allocator; of a per_device, with that of each device.
template <typename Allocator, typename F>
void for_each_observer(Allocator& pool, F f) {
  for_each_front(pool, [&f](auto& front, std::size_t device) {
    const auto one = [&f, device](auto& observer) { f(observer, device); };
    if constexpr (requires { front.with_observer(one); }) {
      front.with_observer(one);
    } else {
      one(front.observer());
    }
  });
}

}  // namespace tessera
