// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <compare>
#include <concepts>
#include <cstddef>
#include <cstdint>

#include <tessera/core/bytes.hpp>

namespace tessera::inline v0_1 {

/// Identifies a queue of device work by the value of its handle. Work on one stream runs in order. The
/// default value is the device's default stream. A number or a pointer is converted only explicitly, so that it cannot
/// be mistaken for a size.
struct stream_id {
  /// A reuse key that is equal for all streams. It is a type of its own, so that the compiler drops the
  /// comparison. It converts to the default stream.
  struct any {
    /// The device's default stream.
    constexpr operator stream_id() const noexcept { return {}; }
    bool operator==(const any&) const = default;
  };

  std::uint64_t handle = 0;  ///< 0 for the device's default stream

  constexpr stream_id() noexcept = default;
  /// Takes a handle that is a number. 0 is the device's default stream.
  constexpr explicit stream_id(std::uint64_t value) noexcept : handle(value) {}
  /// Makes a stream_id of a driver's handle that is a pointer, such as a cudaStream_t.
  template <typename T>
  explicit stream_id(T* of_driver) noexcept : handle(reinterpret_cast<std::uintptr_t>(of_driver)) {}
  constexpr auto operator<=>(const stream_id&) const = default;
};

/// Names a private pool of an allocator [tessera/extension/private_pools.hpp]. The default value is default_pools.
struct pool_id {
  std::uint64_t number = 0;  ///< 0 for the pools that are not private
  constexpr auto operator<=>(const pool_id&) const = default;
};
/// Names the pools of an allocator that are not private. Calls that need a private pool refuse it.
inline constexpr pool_id default_pools{};

/// Rules by which a block freed on one stream may serve another.
struct cross_stream_reuse {
  bool follow_dependencies = false;  ///< reuse if the other stream already waits for the work before the free
  bool opportunistic = false;        ///< reuse if that work has completed
  bool insert_dependencies = false;  ///< make the other stream wait for that work, then reuse
  bool operator==(const cross_stream_reuse&) const = default;
};

/// A kind of page: its size and the permitted uses of its memory.
struct page_kind {
  /// Sizes of pages. The device chooses the size of a normal one.
  enum class page_size : unsigned char {
    normal,  ///< the device's default
    huge,    ///< 2 MiB
    huge_1g  ///< 1 GiB
  };
  /// Selects one of a device's physical memories.
  enum class bandwidth : unsigned char { any, low, high };
  static const page_kind normal;   ///< the device's default pages, in memory of any bandwidth
  static const page_kind huge;     ///< pages of 2 MiB, in memory of any bandwidth
  static const page_kind huge_1g;  ///< pages of 1 GiB, in memory of any bandwidth

  page_size size = page_kind::page_size::normal;  ///< `normal` leaves the size to the device
  bandwidth speed = page_kind::bandwidth::any;    ///< `any` leaves the memory to the device
  bool peer_to_peer = false;                      ///< for copies between two devices
  bool read_only = false;                         ///< the host may read but not write it

  /// Returns the granularity of memory of this kind, in bytes; 1 if the device alone decides.
  [[nodiscard]] constexpr std::size_t granularity() const noexcept {
    return size == page_kind::page_size::huge_1g ? 1_GiB : size == page_kind::page_size::huge ? 2_MiB : 1;
  }
  bool operator==(const page_kind&) const = default;
};

inline constexpr page_kind page_kind::normal{};
inline constexpr page_kind page_kind::huge{.size = page_kind::page_size::huge};
inline constexpr page_kind page_kind::huge_1g{.size = page_kind::page_size::huge_1g};

/// The kinds of pages to ask the device for, first choice first.
struct page_order {
  std::array<page_kind, 3> kinds{};  ///< only the first `count` are asked for
  std::size_t count = 0;             ///< from one to three

  /// The first choice. A range-based for visits the choices in their order.
  [[nodiscard]] constexpr const page_kind* begin() const noexcept { return kinds.data(); }
  /// Behind the last choice. Aborts if `count` is not one to three.
  [[nodiscard]] constexpr const page_kind* end() const noexcept {
    if (count == 0 || count > kinds.size())
      detail::fatal("Recipe::pages: backing() returns one to three kinds of pages");
    return kinds.data() + count;
  }
  /// Returns the granularity of a request in bytes, whichever kind serves it.
  [[nodiscard]] constexpr std::size_t granularity() const noexcept {
    std::size_t max = 1;
    for (const page_kind& kind : *this) max = kind.granularity() > max ? kind.granularity() : max;
    return max;
  }
};

/// A contiguous part of an allocator's memory, for tools. It is a segment, or adjacent mapped pages of a
/// range of addresses. While their pool sleeps, blocks with memory that an extension keeps are a part of their own.
struct segment_view {
  std::uintptr_t address = 0;  ///< of the first byte
  std::size_t bytes = 0;       ///< of the segment, or of the adjacent mapped pages
  stream_id stream{};          ///< the key of its blocks
  std::size_t pool = 0;        ///< the number of its pool
  bool in_range = false;       ///< whether it is part of a range
  pool_id private_pool{};      ///< the private pool that owns it, or none
  bool is_unbacked = false;    ///< whether an extension gave all its memory back
};

/// A block of a segment_view. In the order of addresses, the blocks cover the whole segment_view.
struct block_view {
  /// Whether a request has the block.
  enum class state : unsigned char {
    free,
    live,
    pending  ///< freed, but a stream still uses it
  };
  std::uintptr_t address = 0;  ///< of the first byte
  std::size_t bytes = 0;       ///< of the whole block, at least those requested
  std::size_t requested = 0;   ///< requested bytes; 0 while free
  state is = state::free;      ///< live and pending blocks are active
  stream_id stream{};          ///< the key of the free list that it is in or will join
};

/// An action of an allocator, reported to its observer in order.
struct allocator_event {
  /// PyTorch's trace actions, and actions for ranges and refusals.
  enum class action : unsigned char {
    alloc,           ///< a block was allocated
    free_requested,  ///< the user freed a block
    free_completed,  ///< no stream uses a freed block any more
    segment_alloc,   ///< a segment was acquired
    segment_free,    ///< a segment is about to be released; if the device fails, segment_alloc follows
    segment_map,     ///< `bytes` of physical memory were mapped into a range
    segment_unmap,   ///< `bytes` are about to be unmapped, or slept; if the device fails, segment_map follows
    sleep,          ///< `bytes` under live blocks are about to be unmapped; if the device fails, wake follows
    wake,           ///< `bytes` came back at their addresses
    range_reserve,  ///< a range of addresses was reserved
    range_release,  ///< a range was released
    refused,        ///< the device refused `bytes`, host memory for metadata ran out, or the pool sleeps
    oom,            ///< a request failed, after the steps of recovery if there are any
    snapshot        ///< a tool took a snapshot, with `bytes` in use
  };
  action what;                 ///< decides what the members below mean
  std::uintptr_t address = 0;  ///< for oom: free bytes of the device
  std::size_t bytes = 0;       ///< requested bytes, or bytes of the segment
  std::size_t block = 0;       ///< bytes of the block that serves the request
  stream_id stream{};          ///< stream of the request; without a request, the key of the blocks
  pool_id private_pool{};      ///< the pool of the memory or of the request
};

/// Receives every allocator_event, for extension::observer [tessera/extension/observer.hpp].
///
/// `on` runs in the middle of a change, with the allocator's lock held if there is one. If it allocates or
/// frees in that allocator, the program aborts.
template <typename S>
concept allocator_observer = std::movable<S> && requires(S& observer, const allocator_event& event) {
  { observer.on(event) } noexcept;
};

/// The current use of an allocator's memory, in bytes. The words are PyTorch's.
struct usage {
  std::size_t requested = 0;  ///< requested by the user, for active blocks
  std::size_t allocated = 0;  ///< in blocks that the user has not freed
  std::size_t active = 0;     ///< in these, and in freed blocks that a stream still uses
  std::size_t cached = 0;     ///< in free blocks
  std::size_t reserved = 0;   ///< acquired from the device: active + cached - unbacked
  std::size_t limit = 0;      ///< bytes that may be reserved
  bool has_limit = true;      ///< whether the user set the limit; otherwise it is the device's capacity
  std::size_t unbacked = 0;   ///< of active and cached bytes: without memory, which an extension gave back
  /// Bytes of freed blocks that a stream still uses.
  [[nodiscard]] constexpr std::size_t pending() const noexcept { return active - allocated; }
  bool operator==(const usage&) const = default;
};

/// A quantity over time.
struct counter {
  std::int64_t current = 0;    ///< the value now; no reset changes it
  std::int64_t peak = 0;       ///< the largest value since the start or the last reset_peak_statistics()
  std::int64_t allocated = 0;  ///< sum of all increases
  std::int64_t freed = 0;      ///< sum of all decreases

  /// Adds to the value and to `allocated`, and raises the peak if the value exceeds it.
  constexpr void increase(std::int64_t by) noexcept {
    current += by;
    allocated += by;
    if (current > peak) peak = current;
  }
  /// Subtracts from the value, and adds to `freed`. The peak stays.
  constexpr void decrease(std::int64_t by) noexcept {
    current -= by;
    freed += by;
  }
  /// Increases by `by`, or decreases by its magnitude if it is negative.
  constexpr void change(std::int64_t by) noexcept { by >= 0 ? increase(by) : decrease(-by); }
  bool operator==(const counter&) const = default;
};

/// The counters of one pool, or of all pools. Counters named `_bytes` are in bytes; the others count blocks
/// or segments.
///   Source:  PyTorch's memory_stats(), names and times of counting
struct pool_statistics {
  counter allocation;       ///< blocks from allocation to the user's free
  counter allocated_bytes;  ///< bytes of these blocks
  counter active;           ///< blocks from allocation until they are no longer pending
  counter active_bytes;     ///< bytes of these blocks
  counter requested_bytes;  ///< requested bytes of active blocks
  counter segment;          ///< segments from their acquisition to their release; mapped pages do not count
  counter reserved_bytes;   ///< bytes of segments and of mapped pages
  counter inactive_split;   ///< free blocks that share their segment
  counter inactive_split_bytes;  ///< bytes of these blocks
};

/// The counters of an allocator that are not kept for each pool; `num_` values count since the start or the last
/// reset_accumulated_statistics().
struct allocator_counters {
  counter oversize_allocations;  ///< live blocks of at least max_split_size
  counter oversize_segments;     ///< segments of at least max_split_size
  /// Bytes that the device has given and not taken back. Unlike `reserved_bytes`, its peak includes memory
  /// acquired for a failed request, and memory that the device failed to release.
  counter device_bytes;
  counter unbacked_bytes;               ///< bytes of blocks without memory, which an extension gave back
  std::uint64_t num_alloc_retries = 0;  ///< retries of growth after the cache was emptied
  /// Requests that failed, except those above max_request, and those of a pool that serves none because it sleeps.
  std::uint64_t num_ooms = 0;
  /// Of these, requests for which no step of recovery was chosen, or whose retry failed at once because of
  /// failure_reason::by_capacity. Extensions may have made attempts of their own.
  std::uint64_t num_oom_rejections = 0;
  std::uint64_t num_sync_all_streams = 0;  ///< waits for the pending frees of all groups or of one
  std::uint64_t num_device_alloc = 0;      ///< segments acquired; in ranges, times that memory was mapped
  std::uint64_t num_device_free = 0;       ///< segments released; in ranges, times that memory was unmapped
};

/// An allocator's statistics.
template <std::size_t Pools>
struct statistics : allocator_counters {
  /// Sums over all pools. A peak is that of the sum, not a sum of peaks; `per_stream` has a bound of it.
  pool_statistics all;
  std::array<pool_statistics, Pools> pool;  ///< by the number that the pools policy gives
  std::size_t max_split_size = unlimited;   ///< bytes from which a block or segment is oversize
};

/// Decides which of the fitting free blocks serves first.
enum class free_order : unsigned char {
  lowest_address,   ///< the smallest block; among equal sizes, the lowest address
  oldest_segment,   ///< the smallest block; among equal sizes, the oldest segment, then the lowest address
  newest_in_class,  ///< among blocks up to the next power of two, the last freed block that fits
  by_policy         ///< the split policy has an order of its own: `precedes`
};

/// What a request looks for in a free list.
struct wanted_block {
  std::size_t size = 0;  ///< bytes of the block
  std::size_t pool = 0;  ///< the number that the pools policy gives
  stream_id stream{};    ///< the key that the streams policy gives
};

/// A free block that holds a request and may serve it.
struct free_block {
  std::uintptr_t address = 0;  ///< of the first byte
  std::size_t size = 0;        ///< bytes
  std::uint32_t segment = 0;   ///< numbers segments, or ranges, in the order in which they came, modulo 2^32
  bool is_segment = false;     ///< whether it fills its segment; never in a range
};

/// A request that was just served, and the free block that it was served from.
struct served_request {
  std::size_t requested = 0;   ///< bytes of the request
  wanted_block wanted{};       ///< what the search looked for
  free_block from{};           ///< the free block before it was split
  std::uintptr_t address = 0;  ///< of the block that serves, where the device memory begins
  std::size_t size = 0;        ///< bytes of the block that serves: `wanted.size`, or more if it was not split
};

}  // namespace tessera::inline v0_1

namespace tessera::inline v0_1::detail {

/// Rounds `bytes` up to whole pages of every kind that a pages_policy asks for.
template <typename Pages>
[[nodiscard]] constexpr std::size_t in_whole_pages(const Pages& pages, std::size_t bytes) noexcept {
  return align_up(bytes, pages.backing(bytes).granularity());
}

/// Whether a split_policy compares free blocks itself.
template <typename Split>
concept has_own_order = requires(const Split& p, const free_block& b, const wanted_block& wanted) {
  { p.precedes(b, b, wanted) } noexcept -> std::same_as<bool>;
};
/// Whether a split_policy hears which requests were served.
template <typename Split>
concept hears_requests = requires(Split& p, const served_request& r) {
  { p.note_served(r) } noexcept -> std::same_as<void>;
};

/// The order of a split_policy; lowest_address by default.
template <typename Split>
inline constexpr free_order free_order_of = [] {
  if constexpr (requires { Split::order; }) return Split::order;
  return has_own_order<Split> ? free_order::by_policy : free_order::lowest_address;
}();

/// The optional members of a split_policy are not there, or have the right form.
template <typename Split>
concept has_no_wrong_order = (has_own_order<Split> || (!requires { &Split::precedes; } &&
                                                       free_order_of<Split> != free_order::by_policy)) &&
                             (hears_requests<Split> || !requires { &Split::note_served; });

/// Stands for the clock of an allocator that measures the age of idle memory in searches of its pool.
struct pool_searches {};

}  // namespace tessera::inline v0_1::detail
