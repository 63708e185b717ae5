// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/detail/containers/containers.hpp>

namespace tessera::inline v0_1::detail {

class free_list;
struct stream_use;

/// The outcome of a free.
enum class free_result : unsigned char {
  unknown,  ///< no live block begins at the address; nothing changed
  free,
  pending  ///< until the streams recorded for the block have reached the free
};

/// Describes a part of a segment. It is in host memory; device memory is never touched. One cache line.
///
/// The blocks of a segment form a circular list in the order of addresses. The segment itself closes the
/// list.
struct block {
  enum class state : unsigned char {
    free,
    live,
    live_by_handle,  ///< live; not in the address map, only its handle frees it
    live_flagged,    ///< live; `status.flags` holds its properties
    pending,
    unmapped,  ///< addresses of a range, without memory
    segment    ///< not a block: the segment that closes the circular list
  };

  struct request_info {
    std::size_t bytes;  ///< requested by the user
    union {
      stream_use* uses;            ///< while live, if has_recorded_streams
      std::size_t pending_events;  ///< while pending
    };
  };

  /// What an eviction policy may ask of a segment.
  struct segment_history {
    std::uint64_t uses;           ///< how often the whole segment was free and then served
    std::uint64_t acquire_ticks;  ///< how long the device took to give it
  };

  struct flag_set {
    bool oversize : 1;              ///< it was allocated under the oversize rule
    bool has_recorded_streams : 1;  ///< streams are recorded for it
    bool by_handle : 1;             ///< only its handle frees it
    bool is_lent : 1;               ///< its private pool serves a request of the default pools
  };
  struct status_type {
    union {
      std::uint16_t bin;  ///< while free: the bin of its free list
      flag_set flags;     ///< while live_flagged
    };
    block::state state;
    unsigned char tally;  ///< of the first block of a bin: the blocks of the bin, or that it is a treap
  };

  // Members that change together are not neighbours. Compilers would join neighbours in a register to write them as a
  // pair, which takes more instructions; and a processor stalls if it reads a pair right after one half was written.
  std::uintptr_t address;
  block* prev;       ///< the lower neighbour in the segment, or the segment
  std::size_t size;  ///< bytes
  block* next;       ///< the upper neighbour in the segment, or the segment
  union {
    block* links[2];          ///< while free: previous and next in its bin; while unmapped: in its range
    request_info request;     ///< while live or pending
    segment_history history;  ///< of a segment that is no range, if the eviction policy asks for it
  };
  free_list* list;  ///< the free list that it joins when free
  status_type status;
  union {
    std::uint32_t segment_number;  ///< if blocks are ordered by segment: the segment's number
    std::uint32_t free_since;      ///< while free in a range: the clock when its age began, modulo 2^32
    /// While free, if streams share free blocks: the modulo-2^32 position of its stream after which it is
    /// reusable. It may be conservative, that is, later than necessary.
    std::uint32_t free_after;
  };

  [[nodiscard]] std::uint64_t map_key() const noexcept { return address; }
  [[nodiscard]] std::uintptr_t end() const noexcept { return address + size; }
  /// Whether other blocks share the segment.
  [[nodiscard]] bool is_split() const noexcept { return prev != next; }
  [[nodiscard]] bool is_free() const noexcept { return status.state == state::free; }
  [[nodiscard]] bool is_unmapped() const noexcept { return status.state == state::unmapped; }
  [[nodiscard]] bool is_unused() const noexcept { return is_free() || is_unmapped(); }
  /// Whether a request has it.
  [[nodiscard]] bool is_live() const noexcept { return !is_unused() && status.state != state::pending; }
  /// Whether an extension keeps it pending, without a request and without an event.
  [[nodiscard]] bool is_held() const noexcept { return status.state == state::pending && request.bytes == 0; }
  /// Whether its memory goes back to the device when the cache is emptied, if all memory around it does.
  [[nodiscard]] bool is_idle() const noexcept { return is_free() || is_held(); }
  [[nodiscard]] bool is_by_handle() const noexcept {
    return status.state == state::live_by_handle ||
           (status.state == state::live_flagged && status.flags.by_handle);
  }
  /// Makes the handle of the block stale, before the block becomes anything else.
  void clear_handle() noexcept {
    if (status.state == state::live_by_handle) status.state = state::live;
    status.flags.by_handle = false;
  }
  /// The flags of a live block.
  [[nodiscard]] flag_set flags() const noexcept {
    return status.state == state::live_flagged
               ? status.flags
               : flag_set{false, false, status.state == state::live_by_handle, false};
  }
  void set_flags(flag_set flags) noexcept {
    status.flags = flags;
    status.state = state::live_flagged;
  }

  /// Inserts the block between two neighbours of its segment.
  void link(block& low, block& high) noexcept {
    prev = &low;
    next = &high;
    low.next = this;
    high.prev = this;
  }
  /// Removes the block from its segment.
  void unlink() noexcept {
    prev->next = next;
    next->prev = prev;
  }
};
static_assert(sizeof(block) <= 64);

/// Memory that the device gave as a whole, or a range of addresses.
///
/// A segment is a block only to be the sentinel of its circular list, between the last and the first block.
/// Its state is state::segment, so it never coalesces. A range is also the sentinel of the list of its
/// unmapped blocks, and has an address and a size.
struct segment : block {
  segment* previous_segment;
  segment* next_segment;
  std::uint64_t idle_since;  ///< the clock when the last block became free: the pool's searches, or the time
  bool oversize;             ///< it was acquired under the oversize rule
  std::uint32_t number;      ///< counts acquisitions, modulo 2^32
  segment* next_range;       ///< for a range: the next range of its free list, in the order of addresses

  [[nodiscard]] block& first() noexcept { return *next; }
  [[nodiscard]] const block& first() const noexcept { return *next; }
};

/// Returns the bytes of a segment, or in a range, of the addresses of its blocks.
[[nodiscard]] inline std::size_t segment_bytes(const block& first) noexcept {
  return first.prev->prev->end() - first.address;
}

/// Returns the bytes of a segment whose blocks are all idle, otherwise 0. `first` is its first block.
///   Cost:  linear in the blocks before the first that is not idle
[[nodiscard]] inline std::size_t idle_bytes(const block& first) noexcept {
  const block* b = &first;
  while (b->is_idle()) b = b->next;
  return b == first.prev ? segment_bytes(first) : 0;
}

/// Returns the segment of a block that fills it.
[[nodiscard]] inline segment& segment_of(const block& whole) noexcept {
  return static_cast<segment&>(*whole.prev);
}

/// The segments of one allocator, in no particular order. A segment is being released while the device is
/// asked to take it back.
class segment_list {
 public:
  /// Makes sure that the next insert succeeds. Returns false if host memory ran out.
  [[nodiscard]] bool reserve_one() noexcept { return nodes_.reserve(1); }
  /// Inserts a segment.
  ///   Requires:  a preceding reserve_one()
  [[nodiscard]] segment& insert(std::uint64_t idle_since, bool oversize) noexcept {
    segment& fresh = *nodes_.take();
    fresh.status.state = block::state::segment;
    fresh.idle_since = idle_since;
    fresh.oversize = oversize;
    link(fresh, first_);
    ++count_;
    return fresh;
  }
  void begin_release(segment& s, std::size_t bytes) noexcept {
    unlink(s, first_);
    link(s, releasing_);
    --count_;
    releasing_bytes_ += bytes;
  }
  void cancel_release(segment& s, std::size_t bytes) noexcept {
    unlink(s, releasing_);
    link(s, first_);
    ++count_;
    releasing_bytes_ -= bytes;
  }
  /// Erases a segment that is being released.
  void erase(segment& released, std::size_t bytes) noexcept {
    unlink(released, releasing_);
    releasing_bytes_ -= bytes;
    nodes_.give_back(&released);
  }

  /// Calls f(segment&) for each segment; with `with_releasing`, also for those that are being released. f may not insert or
  /// erase segments.
  template <typename F>
  void for_each(bool with_releasing, F f) const {
    for (segment* s = first_; s != nullptr; s = s->next_segment) f(*s);
    for (segment* s = with_releasing ? releasing_ : nullptr; s != nullptr; s = s->next_segment) f(*s);
  }
  /// Number of segments that are not being released.
  [[nodiscard]] std::size_t count() const noexcept { return count_; }
  [[nodiscard]] std::size_t releasing_bytes() const noexcept { return releasing_bytes_; }
  [[nodiscard]] std::size_t metadata_bytes() const noexcept { return nodes_.metadata_bytes(); }
  void shrink() noexcept { nodes_.purge(); }

 private:
  static void link(segment& s, segment*& first) noexcept {
    s.previous_segment = nullptr;
    s.next_segment = first;
    if (first != nullptr) first->previous_segment = &s;
    first = &s;
  }
  static void unlink(segment& s, segment*& first) noexcept {
    segment*& reference = s.previous_segment != nullptr ? s.previous_segment->next_segment : first;
    reference = s.next_segment;
    if (s.next_segment != nullptr) s.next_segment->previous_segment = s.previous_segment;
  }

  slab<segment> nodes_;
  segment* first_ = nullptr;
  segment* releasing_ = nullptr;
  std::size_t count_ = 0;
  std::size_t releasing_bytes_ = 0;
};

}  // namespace tessera::inline v0_1::detail
