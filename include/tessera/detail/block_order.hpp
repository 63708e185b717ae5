// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>

#include <tessera/core/free_order.hpp>
#include <tessera/detail/block.hpp>

/// The orders of the free blocks of one pool and key. All calls of an index have the same one, so that it stores none.
namespace tessera::detail {

/// By size, then by address.
struct by_address {
  static constexpr bool is_by_size = true;
  /// Whether `a` comes before `b`; without branches, which would be mispredicted.
  [[nodiscard]] static bool precedes(const block& a, const block& b) noexcept {
    return (a.size < b.size) | ((a.size == b.size) & (a.address < b.address));
  }
};

/// The number of the range that a block lies in.
///   Cost:  linear in the ranges of its home
[[nodiscard]] inline std::uint32_t number_of_range(const block& b) noexcept;

/// By size, then by the segment that was taken first, then by address.
template <bool Ranges>
struct by_segment {
  static constexpr bool is_by_size = true;
  [[nodiscard]] static bool precedes(const block& a, const block& b) noexcept {
    if (a.size != b.size) return a.size < b.size;
    const std::uint32_t one = number_of(a);
    const std::uint32_t other = number_of(b);
    return one != other ? static_cast<std::int32_t>(one - other) < 0 : a.address < b.address;
  }

 private:
  [[nodiscard]] static std::uint32_t number_of(const block& b) noexcept {
    if constexpr (Ranges) {
      return number_of_range(b);
    } else {
      return b.segment_number;
    }
  }
};

/// By class, up to the next power of two, and there the one that was filed last first.
struct by_recency {
  static constexpr bool is_by_size = false;
  [[nodiscard]] static bool precedes(const block&, const block&) noexcept { return false; }
};

template <free_order Order, bool Ranges>
using block_order = std::conditional_t<
    Order == free_order::lowest_address, by_address,
    std::conditional_t<Order == free_order::oldest_segment, by_segment<Ranges>, by_recency>>;

}  // namespace tessera::detail
