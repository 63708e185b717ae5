// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace tessera::engine {

class free_blocks;
struct stream_use;

/// A piece of a segment, described outside device memory, which is never touched. One cache line.
struct block {
  enum class state : unsigned char {
    loose,  ///< in no index: between the device, the index and the user
    free,
    live,
    pending
  };

  static constexpr std::uint64_t count_mask = (std::uint64_t{1} << 48) - 1;

  struct tree_links {
    block* left;
    block* right;
  };
  struct request_facts {
    std::size_t requested;  ///< bytes the user asked for
    stream_use* uses;       ///< streams recorded for it, or awaited
  };

  std::uintptr_t address;
  std::size_t size;   ///< bytes
  block* previous;    ///< the neighbour below in the segment; null at the segment's start
  block* next;        ///< the neighbour above
  free_blocks* home;  ///< where it waits when free
  union {
    tree_links tree;      ///< while free
    request_facts facts;  ///< while live or pending
  };
  std::uint64_t count : 48;  ///< free: searches of the pool when it became free; pending: events awaited
  bool oversize : 1;         ///< was handed out under the oversize rule
  state is : 8;

  void set_count(std::uint64_t n) noexcept { count = n & count_mask; }

  /// Whether other blocks share its segment.
  [[nodiscard]] bool is_split() const noexcept { return previous != nullptr || next != nullptr; }
};

}  // namespace tessera::engine
