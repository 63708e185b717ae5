// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include <tessera/detail/blocks/block_manager.hpp>

namespace tessera::inline v0_1::detail {

/// The settings of a block_manager in tests. Derive from it and redefine members.
struct traits_of_tests {
  static constexpr std::size_t pools = 1;
  static constexpr bool uses_events = true;
  static constexpr bool reuses_across_streams = false;
  static constexpr bool has_stream_order = true;
  static constexpr bool has_ranges = false;
  static constexpr bool places_blocks = false;
  static constexpr free_order order = free_order::lowest_address;
  using clock = pool_searches;
  using call_clock = void;
  static constexpr bool counts_reuses = false;
  using extensions = no_extensions;
  using group = pool_group_of<pools>;
  using counters = full_counters<pools>;
};

}  // namespace tessera::inline v0_1::detail
