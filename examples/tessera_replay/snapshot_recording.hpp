// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <tessera/core/stream.hpp>
#include <tessera/observe/snapshot.hpp>
#include <tessera/replay/recording.hpp>
#include "read_snapshot.hpp"
#include "recorded_origins.hpp"
#include "told_capacity.hpp"

namespace tessera::trace {

/// The devices of which a snapshot has a history, or where it has none, those of which it has segments, in order.
[[nodiscard]] inline std::vector<std::size_t> recorded_devices(const snapshot& source) {
  std::vector<std::size_t> found;
  for (std::size_t device = 0; device < source.traces.size(); ++device) {
    if (!source.traces[device].empty()) found.push_back(device);
  }
  if (!found.empty()) return found;
  for (const snapshot::segment& s : source.segments) {
    const auto device = static_cast<std::size_t>(s.device);
    if (found.empty() || found.back() != device) found.push_back(device);
  }
  return found;
}

/// The entries, by their numbers, before which the program itself emptied the cache: where memory went back, and no request
/// came next that took new memory, for which the allocator may have given back what was idle.
[[nodiscard]] inline std::vector<std::size_t> emptied_before(std::span<const snapshot::entry> entries) {
  using action = snapshot::action;
  std::vector<std::size_t> found;
  bool gave_back = false;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const action what = entries[i].what;
    const bool takes = what == action::segment_alloc || what == action::segment_map || what == action::oom;
    if (gave_back && !takes && what != action::segment_free && what != action::segment_unmap)
      found.push_back(i);
    gave_back = what == action::segment_free || what == action::segment_unmap;
  }
  if (gave_back) found.push_back(entries.size());
  return found;
}

/// The requests in a snapshot of one device as a recording: what was live at the start, then its history. A block is
/// freed where its free completed, since the snapshot does not say which streams used it. PyTorch's own snapshots tell of a
/// request that was refused its size as rounded.
[[nodiscard]] inline read_result<recording> recording_of(const snapshot& source, std::size_t device) {
  const auto start = active_at_start(source, device);
  if (const auto* error = std::get_if<input_error>(&start)) return *error;

  recording made{source.name, {}, told_capacity(source, device)};
  std::map<std::uint64_t, std::uint64_t>
      id_at;  // of the live block at an address; not hashed: they could be chosen
  std::uint64_t next_id = 0;
  origin_collector origins(source.stacks);
  const auto allocate = [&](std::uint64_t address, std::size_t size, stream_id stream, std::uint32_t stack,
                            std::string_view label) {
    if (size == 0) return;
    origins.add(stack, label);
    id_at[address] = next_id;
    made.events.push_back({event::kind::allocate, next_id++, size, stream});
  };
  for (const auto& [address, block] : std::get<std::map<std::uint64_t, early_block>>(start))
    allocate(address, block.requested, block.stream, block.stack, {});
  const auto entries = source.trace_of(device);
  const std::vector<std::size_t> emptied = emptied_before(entries);
  auto next = emptied.begin();
  for (std::size_t i = 0; i <= entries.size(); ++i) {
    if (next != emptied.end() && *next == i) made.events.push_back({event::kind::empty_cache}), ++next;
    if (i == entries.size()) break;
    const snapshot::entry& e = entries[i];
    if (e.what == snapshot::action::alloc) {
      allocate(e.address, e.size, e.stream, e.stack, e.label);
    } else if (e.what == snapshot::action::oom && e.size > 0) {
      origins.add(e.stack, e.label);
      add_refused(made, next_id++, e.size, e.stream);
    } else if (e.what == snapshot::action::annotate && !e.label.empty()) {
      if (const auto found = id_at.find(e.address); found != id_at.end()) origins.say(found->second, e.label);
    } else if (e.what == snapshot::action::free_completed) {
      const auto found = id_at.find(e.address);
      if (found == id_at.end()) continue;
      made.events.push_back({event::kind::free, found->second, 0, e.stream});
      id_at.erase(found);
    }
  }
  for (const snapshot::segment& s : source.segments_of(device)) {
    for (const snapshot::block& b : s.blocks) {
      const auto found = b.active() ? id_at.find(b.address) : id_at.end();
      if (found != id_at.end()) origins.complete(found->second, b.stack);
    }
  }
  std::move(origins).finish(made);
  return made;
}
/// The same of the first of the recorded_devices.
[[nodiscard]] inline read_result<recording> recording_of(const snapshot& source) {
  const std::vector<std::size_t> devices = recorded_devices(source);
  return recording_of(source, devices.empty() ? 0 : devices.front());
}

[[nodiscard]] inline read_result<recording> read_snapshot_recording(std::string_view bytes,
                                                                    const std::string& name) {
  auto read = read_snapshot(bytes, name);
  if (auto* error = std::get_if<input_error>(&read)) return std::move(*error);
  return recording_of(std::get<snapshot>(read));
}

}  // namespace tessera::trace
