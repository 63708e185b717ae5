// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include <tessera/core/types.hpp>
#include <tessera/observe/snapshot.hpp>
#include <tessera/trace/csv.hpp>

#include "files.hpp"

namespace replay {

using namespace tessera;
using namespace tessera::trace;

/// A block that is active when a device's history begins.
struct block_at_start {
  std::size_t requested = 0;
  std::size_t size = 0;  ///< 0 if unknown
  stream_id stream{};
  bool live = true;         ///< false: pending
  std::uint32_t stack = 0;  ///< call stack of the allocation, in the snapshot's `stacks`
  observe::snapshot::pool_id pool{};
};

/// Finds the blocks that are live or pending when the history of one device begins, by address.
///
/// A history is bounded, so its oldest entries are lost. A block is active at the start if the history frees
/// it without allocating it. So is a block that is active at the end and not in the history.
///   Returns:  the blocks, or an error that names the entry or block that contradicts the history
///   Cost:     n log n in the length of the history
[[nodiscard]] inline read_result<std::map<std::uint64_t, block_at_start>> blocks_at_start(
    const observe::snapshot& source, std::size_t device) {
  using state = observe::snapshot::block::state;
  using action = observe::snapshot::action;
  std::map<std::uint64_t, block_at_start> result;
  std::map<std::uint64_t, state> now;  // the state at each address in the history
  const auto error = [&](const char* subject, std::uint64_t number, const char* rule) {
    return input_error{source.name + ": device " + std::to_string(device),
                       subject + std::to_string(number) + rule};
  };
  const auto trace = source.trace_of(device);
  for (std::size_t i = 0; i < trace.size(); ++i) {
    const observe::snapshot::entry& e = trace[i];
    if (e.what != action::alloc && e.what != action::free_requested && e.what != action::free_completed)
      continue;
    const auto [at, is_new] = now.emplace(e.address, state::free);
    if (e.what == action::alloc) {
      if (at->second != state::free) return error("entry ", i, ": allocates a block that is live already");
      at->second = state::live;
      continue;
    }
    const bool requested = e.what == action::free_requested;
    if (is_new) {
      result[e.address] = {e.size, e.block, e.stream, requested, 0, e.pool};
    } else if (at->second == state::free || (requested && at->second == state::pending)) {
      return error("entry ", i, ": frees a block that is not live");
    }
    at->second = requested ? state::pending : state::free;
  }
  for (const observe::snapshot::segment& s : source.segments_of(device)) {
    for (const observe::snapshot::block& b : s.blocks) {
      const auto at = now.find(b.address);
      if (at == now.end()) {
        const bool known = b.requested != 0 && b.requested <= b.size;
        if (b.active())
          result[b.address] = {known ? b.requested : b.size, b.size,  s.stream,
                               b.is == state::live,          b.stack, s.pool};
      } else if (b.active() == (at->second == state::free)) {
        return error("the block at ", b.address,
                     b.active() ? " is live and was freed" : " is free and was not freed");
      } else {
        now.erase(at);
      }
    }
  }
  for (const auto& [address, last] : now) {
    if (last != state::free) return error("the block at ", address, " was not freed and is in no segment");
  }
  return result;
}

}  // namespace replay
