// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include <tessera/core/bytes.hpp>
#include <tessera/core/growth_way.hpp>
#include <tessera/core/statistics.hpp>
#include <tessera/core/stream.hpp>

namespace tessera {

/// Why a free block did not serve a request.
enum class obstacle : unsigned char {
  none,  ///< it would serve now: it came free after the search, or host memory ran out
  too_small,
  pool,         ///< it is of another pool
  stream,       ///< it waits for another stream, and blocks do not cross
  unfinished,   ///< it may cross, but not before the work behind which it is free is done
  split_limit,  ///< it is kept whole, for requests of about its size
  size_class    ///< only requests of its size get it
};

/// What could have been done about a failure.
enum class remedy : unsigned char {
  raise_limit,         ///< growth's limit is below what the device has
  raise_device_limit,  ///< the provider has a limit of its own, and refuses
  empty_cache,         ///< idle memory could go back to the device first
  give_back_later,     ///< it should have, but streams' work is not done, or the device failed
  wait_for_streams,    ///< freed blocks that streams still use could be waited for
  try_again,           ///< a block came free after the search, as a stream let go of it
  try_later,           ///< streams were waited for, but still use freed blocks
  grow_exactly,        ///< a smaller segment would have fitted
  use_other_pages,     ///< the device may have pages of another kind
  use_normal_pages,    ///< what is left is less than a page
  cross_streams,       ///< a block of another stream is large enough
  wait_in_order,       ///< the same, behind work that is not done
  share_pool,          ///< a block of another pool is large enough
  raise_split_limit,   ///< a block that is kept whole is large enough
  cut_blocks,          ///< the same, kept for its own size
  enlarge_range,       ///< no range of addresses is long enough
  grow_in_place,       ///< pages between live blocks could go back
  stitch,              ///< they could be used where they are wanted
  cut_smaller_pieces,  ///< stitching moves pieces, and smaller ones would be idle
  share_lanes,         ///< other lanes have free memory
  round_less,          ///< rounding takes what is missing
  keep_rests,          ///< so do the ends of blocks that are handed out whole
  free_list            ///< none of these is known to help: what lives must shrink, or the device grow
};

/// Why a request failed: what was asked for, what was there, and what stood in the way. Sizes are bytes.
struct oom_report {
  struct free_block {
    std::uintptr_t address = 0;
    std::size_t bytes = 0;  ///< 0 where there is none
    std::size_t pool = 0;
    stream_id stream{};
  };
  /// Live and pending blocks that share a segment, or a piece of mapped memory, with free bytes, so that it cannot go back.
  struct pin {
    std::size_t bytes = 0;  ///< free ones
    std::size_t blocks = 0;
    std::size_t held = 0;      ///< bytes of the blocks
    std::uintptr_t first = 0;  ///< address of the lowest block
    std::uintptr_t begin = 0;  ///< of the segment or piece
    std::size_t length = 0;    ///< of that

    /// What freeing the blocks is worth: the free bytes, weighted by their share of what would then be free.
    [[nodiscard]] double worth() const noexcept {
      const auto gained = static_cast<double>(bytes);
      return bytes == 0 ? 0 : gained * (gained / (gained + static_cast<double>(held)));
    }
  };
  struct remedy_for {
    remedy what{};
    std::size_t bytes = 0;  ///< that it is about
  };
  static constexpr std::size_t most_remedies = 4;

  // What was asked for.
  std::size_t requested = 0;
  stream_id stream{};
  std::size_t block = 0;  ///< that would serve it; 0 where the request is above max_request
  std::size_t pool = 0;
  std::size_t segment = 0;  ///< that was needed for it
  std::size_t wanted = 0;   ///< of the device at most: that segment, or in ranges, whole pages for the block
  std::size_t exact_segment = 0;    ///< the least that would do
  std::size_t unpaged_segment = 0;  ///< what it would be in normal pages
  std::int64_t waited_ms = -1;      ///< how long an adaptor waited for others; below 0 where none did

  // What there was.
  usage now{};
  std::size_t capacity = 0;           ///< of the device
  std::size_t available = unlimited;  ///< the device could still give, where it knows
  std::size_t elsewhere = 0;          ///< cached bytes of other lanes

  // The free blocks.
  free_block largest{};
  obstacle largest_is = obstacle::none;
  std::size_t largest_neighbours = 0;  ///< live and pending blocks that keep the largest from going back
  /// Bytes of the largest that is large enough and to which only this is an obstacle.
  std::array<std::size_t, 7> but_for{};
  std::size_t after_pending = 0;  ///< the most bytes side by side, usable once pending blocks are free

  // What keeps free memory from the device.
  std::size_t pinned = 0;          ///< free bytes beside live or pending blocks
  std::size_t pinning = 0;         ///< segments or pieces in which they are
  std::size_t pages_in_place = 0;  ///< of pinned, those in whole pages as grow_in_place maps them
  std::size_t page_in_place = 0;   ///< such a page
  std::size_t pages_stitched = 0;  ///< the same for grow_by_stitching
  std::size_t idle = 0;            ///< free bytes beside none
  std::size_t idle_later = 0;      ///< the same once pending blocks are free
  std::array<pin, 3> pins{};       ///< the most worth first
  std::size_t rounding = 0;        ///< what live blocks, and the one wanted, have above multiples of 512
  std::size_t unsplit = 0;         ///< what live blocks have above what rounding gives

  // What it is composed of.
  std::size_t pools = 1;
  growth_way way = growth_way::segments;
  bool crosses = false;             ///< blocks cross from stream to stream
  bool shares_streams = false;      ///< they do, or all streams share them
  bool empties_cache = false;       ///< before such a request fails
  bool accepts_exact_size = false;  ///< for exact_segment
  bool device_has_order = false;
  bool device_has_ranges = false;
  bool device_is_limited = false;  ///< by a limit of the provider that refuses
  bool pages_fall_back = true;     ///< to normal pages, where others run out
  std::size_t split_limit = unlimited;
  std::size_t range = unlimited;  ///< bytes of addresses that are reserved at once

  // What follows.
  std::array<remedy_for, most_remedies> remedies{};
  std::size_t remedy_count = 0;

  /// Keeps a pin if it is among those most worth.
  void rank(pin here) noexcept {
    for (pin& ranked : pins) {
      const bool is_first =
          here.worth() > ranked.worth() || (here.worth() == ranked.worth() && here.begin < ranked.begin);
      if (is_first) std::swap(here, ranked);
    }
  }
  [[nodiscard]] bool is_absurd() const noexcept { return requested > max_request; }
  /// What could still be reserved within the limit.
  [[nodiscard]] std::size_t room() const noexcept { return least(above(now.limit, now.reserved), available); }
  /// What could without it.
  [[nodiscard]] std::size_t device_room() const noexcept {
    return least(above(capacity, now.reserved), available);
  }
  /// What this allocator could reserve in all without it.
  [[nodiscard]] std::size_t all() const noexcept { return saturating_add(now.reserved, device_room()); }
  /// The same within it.
  [[nodiscard]] std::size_t allowed() const noexcept { return saturating_add(now.reserved, room()); }
  [[nodiscard]] std::size_t missing() const noexcept { return above(wanted, room()); }
  /// What would live if the request had been served, in blocks of just the size that is needed.
  [[nodiscard]] std::size_t needed() const noexcept {
    return above(saturating_add(now.live, block), saturating_add(rounding, unsplit));
  }
  /// Whether what was asked for, in what lives and in this request, is more than the device has, without any rounding.
  [[nodiscard]] bool is_beyond_all() const noexcept {
    return saturating_add(above(now.requested, now.pending), requested) > all();
  }
  /// Whether the request would not be served if nothing lived.
  [[nodiscard]] bool is_beyond_alone() const noexcept { return align_up(requested, 512) > allowed(); }

  [[nodiscard]] static constexpr std::size_t above(std::size_t a, std::size_t b) noexcept {
    return a > b ? a - b : 0;
  }
  [[nodiscard]] static constexpr std::size_t least(std::size_t a, std::size_t b) noexcept {
    return a < b ? a : b;
  }
};

}  // namespace tessera
