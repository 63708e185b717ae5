// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include <tessera/core/stream.hpp>
#include <tessera/trace/active_at_start.hpp>
#include <tessera/trace/event.hpp>
#include <tessera/trace/read_snapshot.hpp>
#include <tessera/trace/snapshot.hpp>
#include <tessera/trace/told_capacity.hpp>

namespace tessera::trace {

/// The requests in a snapshot as a recording: what was live at the start, then the history of the first device that
/// has one. A block is freed where its free completed, since the snapshot does not say which streams used it. PyTorch's
/// own snapshots tell of a request that was refused its size as rounded.
[[nodiscard]] inline read_result<recording> recording_of(const snapshot& source) {
  std::size_t device = 0;
  while (device < source.traces.size() && source.traces[device].empty()) ++device;
  if (device >= source.traces.size())
    device = source.segments.empty() ? 0 : static_cast<std::size_t>(source.segments[0].device);
  const auto start = active_at_start(source, device);
  if (const auto* error = std::get_if<input_error>(&start)) return *error;

  recording made{source.name, {}, told_capacity(source, device)};
  std::map<std::uint64_t, std::uint64_t>
      id_at;  // of the live block at an address; not hashed: they could be chosen
  std::uint64_t next_id = 0;
  const auto allocate = [&](std::uint64_t address, std::size_t size, stream_id stream) {
    if (size == 0) return;
    id_at[address] = next_id;
    made.events.push_back({event::kind::allocate, next_id++, size, stream});
  };
  for (const auto& [address, block] : std::get<std::map<std::uint64_t, early_block>>(start))
    allocate(address, block.requested, block.stream);
  for (const snapshot::entry& e : source.trace_of(device)) {
    if (e.what == snapshot::action::alloc) {
      allocate(e.address, e.size, e.stream);
    } else if (e.what == snapshot::action::oom && e.size > 0) {
      add_refused(made, next_id++, e.size, e.stream);
    } else if (e.what == snapshot::action::free_completed) {
      const auto found = id_at.find(e.address);
      if (found == id_at.end()) continue;
      made.events.push_back({event::kind::free, found->second, 0, e.stream});
      id_at.erase(found);
    }
  }
  return made;
}

[[nodiscard]] inline read_result<recording> read_snapshot_recording(std::string_view bytes,
                                                                    const std::string& name) {
  auto read = read_snapshot(bytes, name);
  if (auto* error = std::get_if<input_error>(&read)) return std::move(*error);
  return recording_of(std::get<snapshot>(read));
}

}  // namespace tessera::trace
