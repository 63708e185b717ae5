// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <tessera/core/bytes.hpp>
#include <tessera/observe/snapshot.hpp>
#include <tessera/recipe/pytorch_family.hpp>
#include <tessera/trace/recording.hpp>

#include "blocks_at_start.hpp"
#include "run_log.hpp"
#include "snapshot_recording.hpp"
#include "start_state.hpp"

namespace replay {

/// Reads the blocks and the segments of a recorded run from the history of a device.
///
/// A history has the requested size of a block, and its real size only while it is live at the end. The others are
/// rounded up to 512 bytes, as PyTorch does, and may be a little larger. It does not say when a private pool is in use,
/// so each is from its first memory on.
///   Requires:  `made` is recording_of(source, device)
///   Returns:   an error with the entry that contradicts the history
///   Cost:      n log n in the length of the history
[[nodiscard]] inline read_result<run_log> recorded_log_of(const observe::snapshot& source, std::size_t device,
                                                          const recording& made) {
  using action = observe::snapshot::action;
  constexpr std::size_t rounding = 512, small_chunk = 2_MiB, large_chunk = 20_MiB;
  const auto start = blocks_at_start(source, device);
  if (const auto* const wrong = std::get_if<input_error>(&start)) return *wrong;
  auto state = start_finder(source, device).find(recipe::policies<recipe::pytorch_family::native>{});
  if (const auto* const wrong = std::get_if<input_error>(&state)) return *wrong;

  std::size_t allocations = 0;
  for (const event& e : made.events) allocations += e.what == event::kind::allocate;
  run_recorder recorder(allocations);
  const auto number_of = [&](observe::snapshot::pool_id pool) -> std::uint64_t {
    if (pool == observe::snapshot::pool_id{}) return 0;
    return pool.first != 0 ? pool.first : pool.second;
  };
  // Memory is mapped into a range, and unmapped, in chunks of one of two sizes.
  const auto acquire = [&](std::uint64_t address, std::size_t bytes, bool in_range, std::uint64_t stream,
                           observe::snapshot::pool_id pool) {
    if (const std::uint64_t pool_number = number_of(pool); pool_number != 0)
      recorder.use_pool(pool_number, true);
    const std::size_t chunk = !in_range ? bytes : bytes % large_chunk == 0 ? large_chunk : small_chunk;
    for (std::size_t at = 0; at < bytes; at += chunk)
      recorder.acquire({address + at, (std::min)(chunk, bytes - at), 0, run_log::never, stream,
                        number_of(pool), in_range});
  };

  std::size_t event = 0, slot = 0;
  for (const observe::snapshot::segment& s : std::get<start_state>(state).segments)
    acquire(s.address, s.size, s.expandable, s.stream.handle, s.pool);
  std::map<std::uint64_t, std::size_t>
      live;  // slots by address; no hash map: addresses could be chosen to collide
  const auto allocate = [&](std::uint64_t address, std::size_t requested, std::size_t bytes) {
    if (requested == 0) return;
    recorder.begin(event++, slot);
    recorder.allocate(address, bytes != 0 ? bytes : align_up(requested, rounding));
    live[address] = slot++;
  };
  for (const auto& [address, b] : std::get<std::map<std::uint64_t, block_at_start>>(start)) {
    allocate(address, b.requested, b.size);
    if (!b.live) recorder.free(address);
  }

  const auto entries = source.trace_of(device);
  const auto& owners = std::get<start_state>(state).owners;
  const std::vector<std::size_t> emptied = find_cache_empties(entries);
  auto next = emptied.begin();
  for (std::size_t i = 0; i <= entries.size(); ++i) {
    if (next != emptied.end() && *next == i) ++event, ++next;
    if (i == entries.size()) break;
    const observe::snapshot::entry& e = entries[i];
    recorder.begin(event, slot);
    switch (e.what) {
      case action::alloc: allocate(e.address, e.size, e.block); break;
      case action::oom:
        if (e.size == 0) break;
        ++event;  // a request that failed
        break;
      case action::free_requested: recorder.free(e.address); break;
      case action::free_completed:
        recorder.complete(e.address);
        event += live.erase(e.address);
        break;
      case action::segment_alloc:
      case action::segment_map: {
        const bool in_range = e.what == action::segment_map;
        acquire(e.address, e.size, in_range, e.stream.handle,
                i < owners.size() ? owners[i].pool : observe::snapshot::pool_id{});
        break;
      }
      case action::segment_free:
      case action::segment_unmap: recorder.release(e.address, e.size); break;
      default: break;
    }
  }
  if (event != made.events.size() || slot != allocations)
    return input_error{source.name, "the history does not match the recording"};
  run_log result = std::move(recorder).finish();
  // The blocks at the end have their real size.
  for (const observe::snapshot::segment& s : source.segments_of(device)) {
    for (const observe::snapshot::block& b : s.blocks) {
      const auto found = b.active() ? live.find(b.address) : live.end();
      if (found != live.end()) result.blocks[found->second].bytes = b.size;
    }
  }
  return result;
}

}  // namespace replay
