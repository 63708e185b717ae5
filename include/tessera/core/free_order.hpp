// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace tessera {

/// Decides which of the fitting free blocks serves first.
enum class free_order : unsigned char {
  lowest_address,  ///< the smallest block; among equal sizes, the lowest address
  oldest_segment,  ///< the smallest block; among equal sizes, the oldest segment, then the lowest address
  newest_in_class  ///< among blocks up to the next power of two, the last freed block that fits
};

}  // namespace tessera

namespace tessera::detail {

/// The order of a split_policy; lowest_address by default.
template <typename Split>
inline constexpr free_order free_order_of = [] {
  if constexpr (requires { Split::order; }) return Split::order;
  return free_order::lowest_address;
}();

}  // namespace tessera::detail
