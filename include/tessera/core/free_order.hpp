// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace tessera {

/// Which of the free blocks that would do serves first.
enum class free_order : unsigned char {
  lowest_address,  ///< the smallest, and of equal ones the one at the lowest address
  oldest_segment,  ///< the smallest, and of equal ones that of the segment that was taken first, then the lowest address
  newest_in_class  ///< of those up to the next power of two, the one that came free last and is large enough
};

/// The order that a policy of splitting asks for; the first where it says nothing.
template <typename Split>
inline constexpr free_order order_of = [] {
  if constexpr (requires { Split::order; }) return Split::order;
  return free_order::lowest_address;
}();

}  // namespace tessera
