// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <gtest/gtest.h>

namespace tessera::inline v0_1::detail {

template <std::size_t Few, typename Kept, typename... Rest>
struct first_types {
  using type = Kept;
};
template <std::size_t Few, typename... Kept, typename First, typename... Rest>
  requires(sizeof...(Kept) < Few)
struct first_types<Few, testing::Types<Kept...>, First, Rest...>
    : first_types<Few, testing::Types<Kept..., First>, Rest...> {};

}  // namespace tessera::inline v0_1::detail

namespace tessera::inline v0_1 {

/// Tests by night, which the nightly script asks for, or by day, for every change. By day they take seconds: they run over fewer
/// types, each of which takes seconds to compile, and for fewer rounds.
#ifdef TESSERA_BY_NIGHT
inline constexpr bool is_night = true;
#else
inline constexpr bool is_night = false;
#endif

/// How long a test runs: a number of programs, rounds or operations, or the distance from one tried call to the next.
template <typename T>
[[nodiscard]] constexpr T by_day(T day, std::type_identity_t<T> night) {
  return is_night ? night : day;
}

/// The distance from one call that a test lets fail to the next: each by night; by day about `tried` of them. The distance is odd, so
/// that calls with odd and with even numbers fail, because programs may repeat their calls in pairs.
[[nodiscard]] constexpr std::uint64_t step_by_day(std::uint64_t calls, std::uint64_t tried) {
  return by_day(calls / tried | 1, 1);
}

/// The types of a typed suite: by day, the first `Few`. These differ in mechanism, as segments, ranges, stitching and reuse across
/// streams do.
template <std::size_t Few, typename... T>
using types_by_day = typename detail::first_types<by_day(Few, sizeof...(T)), testing::Types<>, T...>::type;

}  // namespace tessera::inline v0_1
