// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <vector>

#include <tessera/core/types.hpp>
#include <tessera/trace/recording.hpp>

#include "memory_map.hpp"
#include "run_log.hpp"

namespace replay {

/// Records the memory of a run after each event: the sums of its blocks and segments.
///   Cost:  linear in the events and in the log
[[nodiscard]] inline timeline timeline_of(const run_log& log, const tessera::trace::program& program,
                                          std::size_t max_buckets) {
  const auto& events = program.events();
  struct change {
    std::int64_t requested = 0, live = 0, active = 0, reserved = 0, asleep = 0;
  };
  std::vector<change> at(events.size() + 1);
  const auto index = [&](std::uint32_t event) { return (std::min)(std::size_t{event}, events.size()); };
  std::size_t slot = 0;
  for (std::size_t i = 0; i < events.size(); ++i) {
    if (events[i].what != tessera::trace::event::kind::allocate) continue;
    const run_log::block& b = log.blocks[slot++];
    if (b.address == 0) continue;
    const auto bytes = static_cast<std::int64_t>(b.bytes);
    at[i].requested += static_cast<std::int64_t>(events[i].bytes);
    at[i].live += bytes;
    at[i].active += bytes;
    at[index(b.live_to)].requested -= static_cast<std::int64_t>(events[i].bytes);
    at[index(b.live_to)].live -= bytes;
    at[index(b.to)].active -= bytes;
  }
  for (const run_log::segment& s : log.segments) {
    at[s.from].reserved += static_cast<std::int64_t>(s.bytes);
    at[index(s.to)].reserved -= static_cast<std::int64_t>(s.bytes);
  }
  for (const run_log::sleeping& s : log.asleep) {
    at[s.from].asleep += static_cast<std::int64_t>(s.bytes);
    at[index(s.to)].asleep -= static_cast<std::int64_t>(s.bytes);
  }
  timeline over(max_buckets);
  change sum;
  for (std::size_t i = 0; i < events.size(); ++i) {
    sum.requested += at[i].requested;
    sum.live += at[i].live;
    sum.active += at[i].active;
    sum.reserved += at[i].reserved;
    sum.asleep += at[i].asleep;
    tessera::usage now;
    now.requested = static_cast<std::size_t>(sum.requested);
    now.allocated = static_cast<std::size_t>(sum.live);
    now.active = static_cast<std::size_t>(sum.active);
    // A recorded block may be noted before the segment that holds it.
    now.cached = static_cast<std::size_t>((std::max)(std::int64_t{0}, sum.reserved - sum.active));
    now.reserved = static_cast<std::size_t>(sum.reserved - sum.asleep);
    now.unbacked = static_cast<std::size_t>(sum.asleep);
    over.note(now);
  }
  return over;
}

/// Makes the memory map of a run after an event, from its log. The chunks of a range that touch are one segment.
///
/// Free memory is releasable if no block lies in its segment, or in its chunk of a range, and no private pool in use
/// owns it.
///   Cost:  linear in the log, and n log n in what exists after the event
[[nodiscard]] inline memory_map map_at(const run_log& log, const tessera::trace::program& program,
                                       std::size_t event) {
  using use = memory_map::use;
  const auto exists = [&](std::uint32_t from, std::uint32_t to) { return from <= event && event < to; };
  struct placed {
    const run_log::block* block;
    std::size_t made;  // the event that allocates it
  };
  std::vector<placed> blocks;
  const auto& events = program.events();
  for (std::size_t i = 0, slot = 0; i <= event; ++i) {
    if (events[i].what != tessera::trace::event::kind::allocate) continue;
    const run_log::block& b = log.blocks[slot++];
    if (b.address != 0 && event < b.to) blocks.push_back({&b, i});
  }
  std::sort(blocks.begin(), blocks.end(),
            [](const placed& a, const placed& b) { return a.block->address < b.block->address; });
  std::vector<const run_log::segment*> segments;
  for (const run_log::segment& s : log.segments)
    if (exists(s.from, s.to)) segments.push_back(&s);
  std::sort(segments.begin(), segments.end(), [](const run_log::segment* a, const run_log::segment* b) {
    return std::tuple(a->private_pool, a->stream, a->address) <
           std::tuple(b->private_pool, b->stream, b->address);
  });
  const auto sleeps = [&](std::uint64_t address) {
    return std::any_of(log.asleep.begin(), log.asleep.end(), [&](const run_log::sleeping& s) {
      return exists(s.from, s.to) && s.address <= address && address < s.address + s.bytes;
    });
  };

  memory_map made;
  std::size_t free_run = 0;  // bytes of the free memory that ends at the last cell
  const auto add = [&](use is, std::size_t bytes, const placed* p) {
    if (bytes == 0) return;
    memory_map::cell c{is, made.segments.size() - 1, bytes};
    if (p != nullptr) {
      c.event = p->made;
      c.requested = events[p->made].bytes;
    }
    if (is == use::non_releasable || is == use::releasable)
      made.largest_free = (std::max)(made.largest_free, free_run += bytes);
    if (p != nullptr) free_run = 0;
    made.add(c);
  };
  for (std::size_t first = 0, last = 0; first < segments.size(); first = last) {
    const run_log::segment& s = *segments[first];
    const bool is_asleep = !log.asleep.empty() && sleeps(s.address);
    std::uint64_t end = s.address;
    do {
      end += segments[last]->bytes;
      ++last;
    } while (last < segments.size() && s.in_range && segments[last]->in_range &&
             segments[last]->address == end && segments[last]->stream == s.stream &&
             segments[last]->private_pool == s.private_pool &&
             (log.asleep.empty() || sleeps(segments[last]->address) == is_asleep));
    made.segments.push_back({static_cast<std::uintptr_t>(s.address),
                             static_cast<std::size_t>(end - s.address), tessera::stream_id{s.stream}, 0,
                             s.in_range, 0, 0, s.private_pool, is_asleep});
    const bool is_kept = s.private_pool != 0 && log.is_in_use(s.private_pool, event);
    free_run = 0;
    auto next = std::lower_bound(blocks.begin(), blocks.end(), s.address,
                                 [](const placed& p, std::uint64_t at) { return p.block->address < at; });
    std::size_t chunk = first;
    // Adds the free bytes from `at` to `to`, chunk by chunk.
    const auto add_free = [&](std::uint64_t at, std::uint64_t to) {
      while (at < to) {
        while (segments[chunk]->address + segments[chunk]->bytes <= at) ++chunk;
        const run_log::segment& c = *segments[chunk];
        const std::uint64_t until = (std::min)(to, c.address + c.bytes);
        const bool is_whole = !is_kept && at == c.address && until == c.address + c.bytes;
        const auto bytes = static_cast<std::size_t>(until - at);
        const use is = is_asleep ? use::asleep : is_whole ? use::releasable : use::non_releasable;
        const bool joins = !made.cells.empty() && made.cells.back().segment == made.segments.size() - 1 &&
                           made.cells.back().is == is && made.cells.back().requested == 0;
        add(is, bytes, nullptr);
        if (joins) {
          made.cells.pop_back();
          made.cells.back().bytes += bytes;
          if (is == use::non_releasable) made.cells.back().non_releasable += bytes;
        }
        at = until;
      }
    };
    std::uint64_t at = s.address;
    for (; next != blocks.end() && next->block->address < end; ++next) {
      add_free(at, next->block->address);
      const bool is_live = event < next->block->live_to;
      add(is_asleep ? use::asleep : is_live ? use::live : use::pending, next->block->bytes, &*next);
      at = (std::max)(at, next->block->address + next->block->bytes);
    }
    add_free(at, end);
  }
  made.count_blocks();
  return made;
}

}  // namespace replay
