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

/// The types of a typed suite. By day, they are the first `Few`: those whose mechanisms differ, as segments, ranges, stitching
/// and reuse across streams. The nightly script sets TESSERA_ALL_TYPES, and then they are all, because each type takes seconds to
/// compile.
#ifdef TESSERA_ALL_TYPES
template <std::size_t Few, typename... T>
using types_by_day = testing::Types<T...>;
#else
template <std::size_t Few, typename... T>
using types_by_day = typename detail::first_types<Few, testing::Types<>, T...>::type;
#endif

}  // namespace tessera::inline v0_1
