// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <type_traits>
#include <utility>

/// A policy's numbers, known when compiling or set for each allocator object, written with one template.
namespace tessera {

/// Marks a template argument as the default of a number that each allocator object may set.
///
///     tessera::split_up_to<128_MiB> fixed;                       // a constant
///     tessera::split_up_to<tessera::tunable(128_MiB)> settable;  // a member that begins at it
///     settable.max = 64_MiB;
template <typename T>
struct tunable {
  T initial;
  constexpr explicit tunable(T value) noexcept : initial(value) {}
  bool operator==(const tunable&) const = default;
};

/// The number a policy reads. Made from a plain value it is empty and constant; made from a `tunable` it is a
/// member that starts at the given value and may be assigned.
template <auto Value>
struct parameter {
  using value_type = std::remove_cvref_t<decltype(Value)>;  // nvcc writes decltype((Value)), a reference
  [[nodiscard]] constexpr value_type get() const noexcept { return Value; }
  constexpr operator value_type() const noexcept { return Value; }
  bool operator==(const parameter&) const = default;
};

template <typename T, tunable<T> Initial>
struct parameter<Initial> {
  using value_type = T;
  T value = Initial.initial;
  constexpr parameter() noexcept = default;
  constexpr parameter(T chosen) noexcept : value(chosen) {}
  /// From what stands for a T, as a number of bytes does for a limit.
  template <typename U>
    requires(std::is_class_v<T> && std::convertible_to<U, T> && !std::same_as<U, T> &&
             !std::same_as<U, parameter>)
  constexpr parameter(U chosen) noexcept : value(chosen) {}
  [[nodiscard]] constexpr const T& get() const noexcept { return value; }
  constexpr operator T() const noexcept { return value; }
  bool operator==(const parameter&) const = default;
};

/// The bytes that a template argument says, or that a tunable one begins with.
template <auto Value>
[[nodiscard]] consteval std::size_t bytes_said() {
  constexpr auto said = parameter<Value>{}.get();
  static_assert(std::in_range<std::size_t>(said), "a number of bytes is whole and not below 0");
  return static_cast<std::size_t>(said);
}

}  // namespace tessera
