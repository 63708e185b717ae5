// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

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

/// Whether tests that hold for many types run over all of them. The nightly script asks for that; by day they run over a few,
/// because each type takes seconds to compile.
#ifdef TESSERA_ALL_TYPES
inline constexpr bool runs_all_types = true;
#else
inline constexpr bool runs_all_types = false;
#endif

/// The types of a typed suite: by day, the first `Few`. These differ in mechanism, as segments, ranges, stitching and reuse across
/// streams do.
template <std::size_t Few, typename... T>
using types_by_day =
    typename detail::first_types<runs_all_types ? sizeof...(T) : Few, testing::Types<>, T...>::type;

}  // namespace tessera::inline v0_1
