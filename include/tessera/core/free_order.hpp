// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace tessera {

/// Which of the free blocks that fit serves first.
enum class free_order : unsigned char {
  lowest_address,  ///< the smallest; among equal ones, the one at the lowest address
  oldest_segment,  ///< the smallest; among equal ones, the one in the oldest segment, then at the lowest address
  newest_in_class  ///< of blocks up to the next power of two, the one freed last that is large enough
};

namespace detail {
/// The order of a split_policy; lowest_address if it names none.
template <typename Split>
inline constexpr free_order free_order_of = [] {
  if constexpr (requires { Split::order; }) return Split::order;
  return free_order::lowest_address;
}();
}  // namespace detail

}  // namespace tessera
