// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>

#include <tessera/observe/snapshot.hpp>
#include <tessera/trace/recording.hpp>

#include "input.hpp"
#include "recipes.hpp"
#include "run_settings.hpp"

namespace replay {

/// Where the parts of a recorded state are in an allocator.
struct restored_state {
  std::map<std::uint64_t, std::uintptr_t>
      blocks;  ///< addresses of the blocks in use, by their recorded addresses
  std::map<std::uint64_t, std::uint64_t> pools;  ///< recorded numbers of private pools, by their numbers here
};

/// The events that allocated the blocks that are live before an event, by their addresses in a restored allocator.
[[nodiscard]] std::map<std::uintptr_t, std::size_t> live_events(const run_trace& trace, std::size_t event,
                                                                const restored_state& here);

/// Restores the recorded device before an entry, and calls f with the allocator.
///   Returns:  false if the recorded recipe is none of PyTorch's, or cannot have the state
[[nodiscard]] bool with_recorded_state(
    const tessera::observe::snapshot& source, std::size_t device, std::size_t entry, const run_settings& used,
    const std::function<void(simulated_allocator&, const restored_state&)>& f);

}  // namespace replay
