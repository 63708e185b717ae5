// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include <tessera/core/types.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tool/recipe_entry.hpp>
#include <tessera/trace/recording.hpp>

namespace replay {

using namespace tessera;
using namespace tessera::trace;

/// Records memory usage after each event of a program, in a bounded number of buckets.
///
/// Buckets cover equally many events. When all are full, neighbours are merged. Minimum and maximum of each
/// bucket are exact.
class timeline {
 public:
  struct range {
    std::size_t min = 0;
    std::size_t max = 0;
    bool operator==(const range&) const = default;
  };
  /// In bytes, named as in `usage`.
  struct bucket {
    range requested, live, pending, cached, reserved, asleep;
    bool operator==(const bucket&) const = default;
  };

  ///   Requires:  an even number, at least 2
  explicit timeline(std::size_t max_buckets = 4096) noexcept : max_(max_buckets) {}

  /// Adds the usage after one more event.
  ///   Cost:  constant, amortized
  void note(const usage& now) {
    if (events_ == max_ * width_) join_pairs();
    const bucket one{{now.requested, now.requested}, {now.allocated, now.allocated},
                     {now.pending(), now.pending()}, {now.cached, now.cached},
                     {now.reserved, now.reserved},   {now.unbacked, now.unbacked}};
    if (events_ % width_ == 0) {
      buckets_.push_back(one);
    } else {
      buckets_.back() = joined(buckets_.back(), one);
    }
    if (events_ == 0 || now.reserved > worst_.reserved) {
      worst_ = now;
      worst_event_ = events_;
    }
    ++events_;
  }

  [[nodiscard]] const std::vector<bucket>& buckets() const noexcept { return buckets_; }
  /// The number of events per bucket, a power of two. The last bucket may have fewer.
  [[nodiscard]] std::size_t width() const noexcept { return width_; }
  [[nodiscard]] std::size_t events() const noexcept { return events_; }
  /// The event, from 0, after which reserved memory first has its peak, and the usage then.
  [[nodiscard]] std::size_t worst_event() const noexcept { return worst_event_; }
  [[nodiscard]] const usage& worst() const noexcept { return worst_; }

 private:
  [[nodiscard]] static range joined(range a, range b) noexcept {
    return {(std::min)(a.min, b.min), (std::max)(a.max, b.max)};
  }
  [[nodiscard]] static bucket joined(const bucket& a, const bucket& b) noexcept {
    return {joined(a.requested, b.requested), joined(a.live, b.live),         joined(a.pending, b.pending),
            joined(a.cached, b.cached),       joined(a.reserved, b.reserved), joined(a.asleep, b.asleep)};
  }
  void join_pairs() noexcept {
    const std::size_t pairs = buckets_.size() / 2;
    for (std::size_t i = 0; i < pairs; ++i) buckets_[i] = joined(buckets_[2 * i], buckets_[2 * i + 1]);
    buckets_.resize(pairs);
    width_ *= 2;
  }

  std::size_t max_;
  std::size_t width_ = 1;
  std::size_t events_ = 0;
  std::size_t worst_event_ = 0;
  usage worst_{};
  std::vector<bucket> buckets_;
};

/// The use of an allocator's memory, address by address.
///
/// Free memory is non-releasable if a live block shares its segment or page.
struct memory_map {
  enum class use : unsigned char {
    live,
    pending,         ///< freed, but a stream still uses it
    non_releasable,  ///< free, but trim() keeps it
    releasable,      ///< free, and trim() releases it
    several,         ///< several small neighbours
    asleep           ///< of a pool that sleeps, so its memory has gone back to the device
  };
  struct segment {
    std::uintptr_t address = 0;
    std::size_t bytes = 0;
    stream_id stream{};  ///< the reuse key of its blocks
    std::size_t pool = 0;
    bool in_range = false;
    std::size_t live_blocks = 0;
    std::size_t non_releasable = 0;  ///< bytes
    std::uint64_t private_pool = 0;  ///< its number in the recording; 0 for the default pools
    bool is_unbacked = false;
  };
  /// A block, or a part of a free block that is entirely releasable or non-releasable.
  struct cell {
    use is = use::live;
    std::size_t segment = 0;  ///< an index in `segments`
    std::size_t bytes = 0;
    std::size_t requested = 0;  ///< bytes; 0 while free, and for several blocks
    std::size_t event = 0;      ///< that allocated it, from 0; 0 while free
    std::size_t blocks = 1;
    std::size_t live = 0;            ///< bytes in live and pending blocks
    std::size_t non_releasable = 0;  ///< bytes
  };

  std::vector<segment> segments;  ///< sorted by private pool, pool, stream and address
  std::vector<cell> cells;        ///< sorted by segment and address

  /// Totals of all cells.
  struct totals {
    std::size_t reserved = 0, live = 0, pending = 0, non_releasable = 0, releasable = 0;  ///< bytes
    std::size_t asleep = 0;  ///< bytes, not reserved
    std::size_t live_blocks = 0;
    std::size_t keeping_blocks = 0;  ///< live blocks that share a segment with non-releasable memory
  };
  totals sums;
  std::size_t largest_free = 0;  ///< bytes of the largest free block before the event; 0 without an event

  /// Appends a cell of the last segment, and counts its bytes there and in the totals.
  void add(cell c) {
    segment& in = segments.back();
    (c.is == use::asleep ? sums.asleep : sums.reserved) += c.bytes;
    if (c.is == use::live || c.is == use::pending) {
      c.live = c.bytes;
      (c.is == use::live ? sums.live : sums.pending) += c.bytes;
      in.live_blocks += c.is == use::live;
    } else if (c.is != use::asleep) {
      if (c.is == use::non_releasable) in.non_releasable += c.non_releasable = c.bytes;
      (c.is == use::non_releasable ? sums.non_releasable : sums.releasable) += c.bytes;
    }
    cells.push_back(c);
  }
  /// Counts the live blocks of all segments in the totals, after all cells are there.
  void count_blocks() {
    for (const segment& s : segments) {
      sums.live_blocks += s.live_blocks;
      if (s.non_releasable != 0) sums.keeping_blocks += s.live_blocks;
    }
  }

  /// Merges small neighbours, the smallest first, until there are at most `max` cells. The totals stay.
  ///   Requires:  max > 0
  void coarsen(std::size_t max) {
    for (std::size_t limit = 512; cells.size() > max; limit *= 2) {
      std::size_t kept = 0;
      for (std::size_t i = 1; i < cells.size(); ++i) {
        cell& last = cells[kept];
        const cell& next = cells[i];
        // Segments are merged only if both are small.
        const bool sleeps = last.is == use::asleep;
        const bool apart = sleeps != (next.is == use::asleep) ||
                           (last.segment != next.segment &&
                            (segments[last.segment].bytes > limit || segments[next.segment].bytes > limit));
        if (last.bytes <= limit && next.bytes <= limit && !apart) {
          last = {sleeps ? use::asleep : use::several,
                  last.segment,
                  last.bytes + next.bytes,
                  0,
                  0,
                  last.blocks + next.blocks,
                  last.live + next.live,
                  last.non_releasable + next.non_releasable};
        } else {
          cells[++kept] = next;
        }
      }
      cells.resize(kept + 1);
    }
  }
};

/// Collects the memory map of an allocator. Empties its cache to see which memory stays.
/// Private pools have their numbers in the allocator.
///   Requires:  allocated_by[address] is the event that allocated the live or pending block there
[[nodiscard]] inline memory_map map_and_trim(
    tool::detail::simulated_allocator& pool,
    const std::unordered_map<std::uintptr_t, std::size_t>& allocated_by) {
  using use = memory_map::use;
  struct seen {
    segment_view in;
    block_view block;
  };
  std::vector<seen> before;
  std::vector<std::pair<std::uintptr_t, std::uintptr_t>> staying;  // begin and end
  pool.for_each_block([&](const segment_view& s, const block_view& b) { before.push_back({s, b}); });
  pool.trim();
  pool.for_each_block([&](const segment_view&, const block_view& b) {
    staying.emplace_back(b.address, b.address + b.bytes);
  });
  std::sort(staying.begin(), staying.end());
  std::sort(before.begin(), before.end(), [](const seen& a, const seen& b) {
    if (a.in.private_pool != b.in.private_pool) return a.in.private_pool.number < b.in.private_pool.number;
    if (a.in.pool != b.in.pool) return a.in.pool < b.in.pool;
    if (a.in.stream.handle != b.in.stream.handle) return a.in.stream.handle < b.in.stream.handle;
    return a.block.address < b.block.address;
  });

  memory_map made;
  const auto add = [&](use is, std::size_t bytes, const block_view& b) {
    memory_map::cell c{is, made.segments.size() - 1, bytes};
    if (b.is != block_view::state::free) {
      c.requested = b.requested;
      if (const auto by = allocated_by.find(b.address); by != allocated_by.end()) c.event = by->second;
    }
    made.add(c);
  };
  const auto add_free = [&](const block_view& b) {
    std::uintptr_t at = b.address;
    const std::uintptr_t end = b.address + b.bytes;
    auto stay = std::upper_bound(staying.begin(), staying.end(), std::pair(at, UINTPTR_MAX));
    if (stay != staying.begin()) --stay;
    for (; at < end && stay != staying.end() && stay->first < end; ++stay) {
      if (stay->second <= at) continue;
      if (stay->first > at) add(use::releasable, stay->first - at, b), at = stay->first;
      add(use::non_releasable, (std::min)(end, stay->second) - at, b);
      at = (std::min)(end, stay->second);
    }
    if (at < end) add(use::releasable, end - at, b);
  };
  for (const auto& [in, block] : before) {
    if (made.segments.empty() || made.segments.back().address != in.address)
      made.segments.push_back({in.address, in.bytes, in.stream, in.pool, in.in_range, 0, 0,
                               in.private_pool.number, in.is_unbacked});
    if (in.is_unbacked) {
      add(use::asleep, block.bytes, block);
      continue;
    }
    switch (block.is) {
      case block_view::state::live: add(use::live, block.bytes, block); break;
      case block_view::state::pending: add(use::pending, block.bytes, block); break;
      case block_view::state::free: add_free(block); break;
    }
  }
  made.count_blocks();
  return made;
}

/// Replays a recording up to an event, and returns the memory map after it.
///
///     using namespace tessera::trace;
///     const recording made{"one block", {{event::kind::allocate, 0, 5_MiB}}};
///     const memory_map seen = map_after(program(made), 0, tessera::provider::simulated_device{},
///                                       any_recipe::of<tessera::recipe::pytorch<>>({}));
///     std::printf("%zu of %zu bytes non_releasable\n", seen.sums.non_releasable, seen.sums.reserved);
///
///   Requires:  event < source.events().size()
///   Cost:      a replay up to that event
[[nodiscard]] inline memory_map map_after(const program& source, std::size_t event,
                                          provider::simulated_device device,
                                          const tool::detail::any_recipe& recipe) {
  const auto& all = source.events();
  const recording until{{}, {all.begin(), all.begin() + static_cast<std::ptrdiff_t>(event) + 1}};
  const program start(until);
  tool::detail::simulated_allocator pool = recipe.make(std::move(device));
  std::unordered_map<std::uintptr_t, std::size_t> allocated_by;
  std::map<std::uint64_t, std::uint64_t>
      recorded_number;  // of private pools, by their number in the allocator
  std::size_t largest_free = 0;
  tessera::trace::replay(
      start, pool,
      [&](std::size_t i) {
        if (i != event) return;
        pool.for_each_block([&](const segment_view&, const block_view& b) {
          if (b.is == block_view::state::free) largest_free = (std::max)(largest_free, b.bytes);
        });
      },
      [&]<typename Outcome>(std::size_t i, Outcome outcome) {
        if constexpr (std::is_same_v<Outcome, pool_outcome>) {
          recorded_number[outcome.pool.number] = all[i].id;
        } else if (all[i].what == event::kind::allocate && outcome != nullptr) {
          allocated_by[reinterpret_cast<std::uintptr_t>(outcome)] = i;
        }
      });
  memory_map made = map_and_trim(pool, allocated_by);
  for (memory_map::segment& s : made.segments) {
    if (s.private_pool != 0) s.private_pool = recorded_number[s.private_pool];
  }
  made.largest_free = largest_free;
  return made;
}

}  // namespace replay
