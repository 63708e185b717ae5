// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include <tessera/core/bytes.hpp>
#include <tessera/core/divisions.hpp>
#include <tessera/policy/rounding.hpp>
#include <tessera/trace/event.hpp>
#include <tessera/trace/snapshot.hpp>
#include <tessera/trace/start_state.hpp>

namespace tessera::trace {

/// The requests in a snapshot as a recording: what was live at the start, then the history of the first device that
/// has one. A block is freed where its free completed, since the snapshot does not say which streams used it.
[[nodiscard]] inline read_result<recording> read_snapshot_recording(std::string_view bytes,
                                                                    const std::string& name) {
  auto read = read_snapshot(bytes, name);
  if (auto* error = std::get_if<input_error>(&read)) return std::move(*error);
  const snapshot& source = std::get<snapshot>(read);
  std::size_t device = 0;
  while (device < source.traces.size() && source.traces[device].empty()) ++device;
  if (device >= source.traces.size())
    device = source.segments.empty() ? 0 : static_cast<std::size_t>(source.segments[0].device);
  round_to_divisions<512> rounding;
  for (std::size_t i = 0; i < divisions::slots; ++i)
    rounding.table.value.in_slot[i] = source.configured.roundup_power2_divisions[i];
  auto start =
      start_finder(source, device).find([&](std::size_t n) { return rounding.block_size(n != 0 ? n : 1); });
  if (auto* error = std::get_if<input_error>(&start)) return std::move(*error);

  recording made{name, {}};
  std::unordered_map<std::uint64_t, std::uint64_t> id_at;  // of the live block at an address
  std::uint64_t next_id = 0;
  const auto allocate = [&](std::uint64_t address, std::size_t size, stream_id stream) {
    if (size == 0) return;
    id_at[address] = next_id;
    made.events.push_back({event::kind::allocate, next_id++, size, stream});
  };
  for (const snapshot::segment& s : std::get<std::vector<snapshot::segment>>(start)) {
    for (const snapshot::block& b : s.blocks) {
      if (b.active)
        allocate(b.address, b.requested != 0 && b.requested <= b.size ? b.requested : b.size, s.stream);
    }
  }
  if (device < source.traces.size()) {
    for (const snapshot::entry& e : source.traces[device]) {
      if (e.what == snapshot::action::alloc) {
        allocate(e.address, e.size, e.stream);
      } else if (e.what == snapshot::action::free_completed) {
        const auto found = id_at.find(e.address);
        if (found == id_at.end()) continue;
        made.events.push_back({event::kind::free, found->second, 0, e.stream});
        id_at.erase(found);
      }
    }
  }
  return made;
}

}  // namespace tessera::trace
