// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <type_traits>

namespace tessera {

/// Means what std::regular means of a type that can be swapped by moving it, and takes a compiler a tenth of the work.
template <typename T>
concept regular =
    std::is_default_constructible_v<T> && std::is_copy_constructible_v<T> && std::is_copy_assignable_v<T> &&
    std::is_destructible_v<T> && requires(const T& a, const T& b) {
      { a == b } -> std::convertible_to<bool>;
    };

}  // namespace tessera
