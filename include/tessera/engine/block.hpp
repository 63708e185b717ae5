// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace tessera::engine {

class free_blocks;
struct block;
struct stream_use;

/// What the device gave in one piece.
struct segment {
  block* first;  ///< the block at its start
  segment* previous;
  segment* next;
  bool oversize;  ///< was taken under the oversize rule
};

/// A piece of a segment, described outside device memory, which is never touched. One cache line.
struct block {
  enum class state : unsigned char { free, live, pending };
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
  std::size_t size;       ///< bytes
  std::uintptr_t before;  ///< the neighbour below in the segment, or the segment, marked by a set bit 0
  block* above;           ///< the neighbour above, or null
  free_blocks* home;      ///< where it waits when free
  union {
    tree_links tree;      ///< while free
    request_facts facts;  ///< while live or pending
  };
  std::uint64_t count : 48;  ///< free: searches of the pool when it became free; pending: events awaited
  bool oversize : 1;         ///< was handed out under the oversize rule
  state is : 8;

  void set_count(std::uint64_t n) noexcept { count = n & count_mask; }

  [[nodiscard]] bool is_first() const noexcept { return (before & 1) != 0; }
  [[nodiscard]] block* below() const noexcept {
    return is_first() ? nullptr : reinterpret_cast<block*>(before);
  }
  [[nodiscard]] segment& origin() const noexcept {
    return *reinterpret_cast<segment*>(before & ~std::uintptr_t{1});
  }
  /// Whether other blocks share its segment.
  [[nodiscard]] bool is_split() const noexcept { return !is_first() || above != nullptr; }

  void begin(segment& whole) noexcept {
    before = reinterpret_cast<std::uintptr_t>(&whole) | 1;
    whole.first = this;
  }
  /// Puts a new block between this one and the one below.
  void insert_below(block& low) noexcept {
    low.before = before;
    low.above = this;
    if (is_first()) {
      origin().first = &low;
    } else {
      below()->above = &low;
    }
    before = reinterpret_cast<std::uintptr_t>(&low);
  }
  void insert_above(block& high) noexcept {
    high.before = reinterpret_cast<std::uintptr_t>(this);
    high.above = above;
    if (above != nullptr) above->before = reinterpret_cast<std::uintptr_t>(&high);
    above = &high;
  }
  /// Takes it out of its segment's row of blocks.
  void unlink() noexcept {
    if (above != nullptr) above->before = before;
    if (is_first()) {
      origin().first = above;
    } else {
      below()->above = above;
    }
  }
};

}  // namespace tessera::engine
