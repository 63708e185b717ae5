// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace tessera::detail {

class free_list;
struct stream_use;

/// What became of a block that was given back.
enum class taken : unsigned char {
  unknown,  ///< there is no live block at the address
  free,
  held  ///< until the streams noted for it have come past
};

/// A piece of a segment, described outside device memory, which is never touched. One cache line.
///
/// The blocks of a segment are a ring in the order of addresses, closed by the segment itself.
struct block {
  enum class state : unsigned char {
    free,
    live,
    live_by_handle,  ///< live, and not to be found by address
    live_noted,      ///< live, and `noted` tells what is special about it
    pending,
    unmapped,  ///< addresses of a range, without memory
    segment    ///< no block: the segment that closes the ring
  };

  struct request_facts {
    std::size_t requested;  ///< bytes the user asked for
    union {
      stream_use* uses;     ///< while live, if it has_uses
      std::size_t awaited;  ///< while pending: events
    };
  };

  struct notes {
    bool oversize : 1;   ///< was handed out under the oversize rule
    bool has_uses : 1;   ///< streams are recorded for it
    bool by_handle : 1;  ///< is not to be found by address
  };
  /// What it is now.
  struct marks {
    union {
      std::uint16_t bin;  ///< while free: where its index keeps it
      notes noted;        ///< while live_noted
    };
    state is;
    bool in_treap;  ///< while free: how that bin is kept
  };

  std::uintptr_t address;
  std::size_t size;  ///< bytes
  block* below;      ///< the neighbour in the segment, or the segment
  block* above;
  union {
    block* links[2];      ///< while free: to others in its bin; while unmapped: to others in its range
    request_facts facts;  ///< while live or pending
  };
  free_list* home;  ///< where it waits when free
  marks mark;
  union {
    std::uint32_t segment_number;  ///< where the order of segments counts: that of its segment
    std::uint32_t free_since;      ///< while free in a range: searches of its pool at the time, modulo 2^32
    /// While free, where blocks cross from stream to stream: the position, modulo 2^32, of its home's stream behind which
    /// it is free. As a stream's later position lies behind its earlier ones, it may stand for a later one.
    std::uint32_t free_behind;
  };

  [[nodiscard]] std::uint64_t map_key() const noexcept { return address; }
  /// Whether other blocks share its segment.
  [[nodiscard]] bool is_split() const noexcept { return below != above; }
  [[nodiscard]] bool is_free() const noexcept { return mark.is == state::free; }
  [[nodiscard]] bool is_unmapped() const noexcept { return mark.is == state::unmapped; }
  /// Whether a block in a range could come to lie here.
  [[nodiscard]] bool is_open() const noexcept { return is_free() || is_unmapped(); }
  [[nodiscard]] std::uintptr_t end() const noexcept { return address + size; }
  [[nodiscard]] bool is_by_handle() const noexcept {
    return mark.is == state::live_by_handle || (mark.is == state::live_noted && mark.noted.by_handle);
  }
  /// So that its handle stands for no block of any kind, whatever becomes of it.
  void by_handle_no_more() noexcept {
    if (mark.is == state::live_by_handle) mark.is = state::live;
    mark.noted.by_handle = false;
  }
  /// Of a live block: what is special about it.
  [[nodiscard]] notes what_is_noted() const noexcept {
    return mark.is == state::live_noted ? mark.noted : notes{false, false, mark.is == state::live_by_handle};
  }
  void note(notes special) noexcept {
    mark.noted = special;
    mark.is = state::live_noted;
  }

  /// Puts it between two neighbours.
  void link(block& low, block& high) noexcept {
    below = &low;
    above = &high;
    low.above = high.below = this;
  }
  /// Takes it out of its segment's ring.
  void unlink() noexcept {
    below->above = above;
    above->below = below;
  }
};
static_assert(sizeof(block) <= 64);

/// What the device gave in one piece, as what lies below its first block and above its last; never free. Where that is a
/// range of addresses, it also closes the ring of what is unmapped there, and knows where the range begins and how large
/// it is, as a block does.
struct segment : block {
  segment* previous;
  segment* next;
  std::uint64_t idle_since;  ///< searches of its pool when nothing in it was used any more
  bool oversize;             ///< was taken under the oversize rule
  std::uint32_t number;      ///< how many were taken before it, modulo 2^32
  segment* next_range;       ///< of a range: the next one of its home, in the order of addresses

  [[nodiscard]] block& first() const noexcept { return *above; }
};

/// The segment of a block that is all of it.
[[nodiscard]] inline segment& segment_of(const block& whole) noexcept {
  return static_cast<segment&>(*whole.below);
}

}  // namespace tessera::detail
