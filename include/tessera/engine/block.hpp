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
  std::uint64_t idle_since;  ///< searches of its pool when nothing in it was used any more
  bool oversize;             ///< was taken under the oversize rule
};

/// A piece of a segment, described outside device memory, which is never touched. One cache line.
struct block {
  enum class state : unsigned char { free, live, pending };

  struct request_facts {
    std::size_t requested;  ///< bytes the user asked for
    union {
      stream_use* uses;     ///< while live, if it has_uses
      std::size_t awaited;  ///< while pending: events
    };
  };

  /// What it is now.
  struct marks {
    std::uint16_t bin;  ///< while free: where its index keeps it
    state is;
    bool in_treap = false;  ///< while free: how that bin is kept
    bool oversize = false;  ///< while live: was handed out under the oversize rule
    bool has_uses = false;  ///< while live: streams are recorded for it
  };

  std::uintptr_t address;
  std::uintptr_t before;  ///< the neighbour below in the segment, or the segment, marked by a set bit 0
  std::size_t size;       ///< bytes
  block* above;           ///< the neighbour above, or null
  union {
    block* links[2];      ///< while free: to others in its bin
    request_facts facts;  ///< while live or pending
  };
  free_blocks* home;  ///< where it waits when free
  marks mark;

  [[nodiscard]] std::uint64_t map_key() const noexcept { return address; }
  [[nodiscard]] bool is_first() const noexcept { return (before & 1) != 0; }
  [[nodiscard]] block* below() const noexcept {
    return is_first() ? nullptr : reinterpret_cast<block*>(before);
  }
  [[nodiscard]] segment& origin() const noexcept {
    return *reinterpret_cast<segment*>(before & ~std::uintptr_t{1});
  }
  /// Whether other blocks share its segment.
  [[nodiscard]] bool is_split() const noexcept { return !is_first() || above != nullptr; }
  [[nodiscard]] bool is_free() const noexcept { return mark.is == state::free; }

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
static_assert(sizeof(block) <= 64);

}  // namespace tessera::engine
