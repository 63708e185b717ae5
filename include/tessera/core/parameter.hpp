// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>
#include <utility>

#include <tessera/core/bytes.hpp>

/// The parameters of policies. A parameter is known at compile time or set for each allocator object; one
/// template serves both.

namespace tessera::inline v0_1 {

/// Marks a template argument as the initial value of a parameter that each allocator object may set.
///
///     tessera::policy::split_below<128_MiB> fixed;                       // a constant
///     tessera::policy::split_below<tessera::tunable(128_MiB)> settable;  // a member, initially 128 MiB
///     settable.max = 64_MiB;
template <typename T>
struct tunable {
  T initial;  ///< the value of the parameter until the program sets it
  /// Takes the initial value. Write `tunable(128_MiB)`.
  constexpr explicit tunable(T value) noexcept : initial(value) {}
  bool operator==(const tunable&) const = default;
};

/// A policy's parameter. A plain value makes an empty constant; a `tunable` makes a member that can be set.
template <auto Value>
struct parameter {
  /// The type of `Value`, without const.
  using value_type = std::remove_cvref_t<decltype(Value)>;  // nvcc writes decltype((Value)), a reference
  /// The number itself; both forms of a parameter have this function.
  [[nodiscard]] constexpr value_type get() const noexcept { return Value; }
  /// Lets policies write the parameter where they mean its value.
  constexpr operator value_type() const noexcept { return Value; }
  bool operator==(const parameter&) const = default;
};

/// The form of a parameter that a tunable initializes: a member that the program may set.
template <auto Initial>
  requires(requires { Initial.initial; })  // g++ 11 would not match a tunable<T> Initial
struct parameter<Initial> {
  /// The type of the tunable's number.
  using value_type = std::remove_cvref_t<decltype(Initial.initial)>;
  value_type value = Initial.initial;  ///< read at each decision, so a change counts from the next one on
  constexpr parameter() noexcept = default;
  /// Sets the parameter, as in `policy.max = 64_MiB`.
  constexpr parameter(value_type initial) noexcept : value(initial) {}
  /// Converts to a value_type of class type, for example from a number of bytes to a limit.
  template <typename U>
    requires(std::is_class_v<value_type> && std::convertible_to<U, value_type> &&
             !std::same_as<U, value_type> && !std::same_as<U, parameter>)
  constexpr parameter(U initial) noexcept : value(initial) {}
  /// The value now.
  [[nodiscard]] constexpr const value_type& get() const noexcept { return value; }
  /// Lets policies write the parameter where they mean its value.
  constexpr operator value_type() const noexcept { return value; }
  bool operator==(const parameter&) const = default;
};

/// The SmallLimit and Boundary of split and growth policies that take this limit from the pools policy.
inline constexpr std::size_t limit_of_pools = unlimited;

/// The limit of small blocks, which the pools policy owns, for split and growth policies. A policy
/// that needs it takes it as the last argument of its question, with the default `{}`.
///
///     struct split_small_blocks : tessera::policy::split_never<> {
///       [[nodiscard]] static constexpr bool should_split(std::size_t wanted, std::size_t block,
///                                                        tessera::pool_traits in = {}) noexcept {
///         return wanted <= in.small_limit_or(1_MiB) && block > wanted;
///       }
///       bool operator==(const split_small_blocks&) const = default;
///     };
struct pool_traits {
  /// Blocks of up to so many bytes have a pool of their own; `unlimited` if the pools policy does not say.
  std::size_t max_small_block = unlimited;

  /// The limit of small blocks in bytes; `otherwise` if the pools policy does not say.
  [[nodiscard]] constexpr std::size_t small_limit_or(std::size_t otherwise) const noexcept {
    return max_small_block != unlimited ? max_small_block : otherwise;
  }
  bool operator==(const pool_traits&) const = default;
};

}  // namespace tessera::inline v0_1

namespace tessera::inline v0_1::detail {

/// A regular type, like std::regular. It compiles in a tenth of the time, because it instantiates no traits.
template <typename T>
concept regular = requires(T& object, const T& a, const T& b) {
  T{};
  T(a);
  object = a;
  { a == b } -> std::same_as<bool>;
};

/// Returns the value, or initial value, of a parameter in bytes.
template <auto Value>
[[nodiscard]] consteval std::size_t initial_bytes() {
  constexpr auto value = parameter<Value>{}.get();
  static_assert(std::in_range<std::size_t>(value), "a number of bytes is whole and not below 0");
  return static_cast<std::size_t>(value);
}

/// Whether tests have shown that a rounding policy obeys its laws for every request. Its results are then not
/// checked at run time. False for types derived from such a policy.
template <typename P>
inline constexpr bool is_verified_rounding = false;

}  // namespace tessera::inline v0_1::detail
