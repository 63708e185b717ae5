// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace tessera {

/// A function that takes anything and does nothing; by name, as nvcc fails at lambdas in a requires-expression.
struct does_nothing {
  template <typename T>
  void operator()(T&) const noexcept {}
};
/// An allocator that was chosen among several when the program began, which its visit reaches.
template <typename Allocator>
concept chosen_when_run = requires(Allocator& pool) { pool.visit(does_nothing{}); };

/// Calls f(caching_allocator) for the one in whose segments an address may lie, of an allocator of any kind, with its mutex
/// held where it has one; not, where it is known to lie in none. f must not use the allocator.
///   Cost:  constant
template <typename Allocator, typename F>
void with_owner_of(Allocator& pool, const void* p, F f) {
  if constexpr (requires { pool.enter_owner(p, f); }) {
    pool.enter_owner(p, f);
  } else if constexpr (chosen_when_run<Allocator>) {
    pool.visit([&](auto& chosen) { with_owner_of(chosen, p, f); });
  } else if constexpr (requires { pool.pool(); }) {
    f(pool.pool());
  } else if constexpr (requires { pool.enter_each(f); }) {
    pool.enter_each(f);
  } else {
    f(pool);
  }
}

}  // namespace tessera
